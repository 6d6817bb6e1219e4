"""`nap tune`: the grid extends until the best rate lies inside, it resumes, and its seeds enter no result."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nap.lab.claims import evaluate
from nap.lab.cli.main import main
from nap.lab.experiments import MODULES, fig1
from nap.lab.experiments.experiment import Experiment, Run, Tuning
from nap.lab.experiments.fig1 import PAPER
from nap.lab.experiments.tuned import FILE_NAME, Sensitivity, label, read
from nap.lab.launch import tune as tune_module
from nap.lab.launch.jobs import Job
from nap.lab.launch.run_state import read_state
from nap.lab.report import command as report
from nap.lab.report.sensitivity import find, usable
from nap.lab.rows import Rows
from nap.lab.runner.folder import RunFolder
from nap.lab.runner.run import STOPPED, run_work
from nap.lab.seeds import FIRST_TUNING_SEED

BEST = {"low": 1e-3, "high": 3.2e-2}  # arm → the rate with the highest score
ADAPTIVE = Tuning(metric="score", rates=(1e-3, 2e-3, 4e-3))


@dataclass(frozen=True)
class Peak:
    """Settings of an experiment whose best learning rates are known."""

    arms: tuple[str, ...] = ("low", "high")
    """Arms."""
    learning_rate: float = 1e-3
    """Learning rate."""
    seeds: int = 3
    """Seeds of a result."""
    first_seed: int = 0
    """The first of them."""
    sharpness: float = 1.0
    """How fast results fall beside the best rate."""


@dataclass(frozen=True)
class PeakRun:
    arm: str
    settings: Peak


class Score:
    """One row for each seed: a parabola over the logarithm of the rate; `nan` far above the best."""

    unit, total, steps_per_unit = "steps", 1, 1

    def __init__(self, what: PeakRun):
        self.what, self.done = what, 0

    def step(self) -> list[dict[str, Any]]:
        self.done = 1
        settings = self.what.settings
        distance = math.log2(settings.learning_rate / BEST[self.what.arm])
        score = math.nan if distance > 4 else -settings.sharpness * distance**2
        seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
        row = {"experiment": "peak", "arm": self.what.arm}
        return [row | {"seed": seed, "task": 1, "score": score + 0.001 * seed} for seed in seeds]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


def start(what: PeakRun, device: torch.device) -> Score:
    return Score(what)


def peak_runs(config: Peak) -> list[Run]:
    whats = [PeakRun(arm, replace(config, arms=("low", "high"))) for arm in config.arms]
    return [Run(what.arm, what, partial(start, what)) for what in whats]


EXPERIMENT = Experiment(
    name="peak",
    title="a parabola",
    shows="Tuning finds its top.",
    scales={"demo": Peak(), "small": Peak(), "paper": Peak()},
    runs=peak_runs,
    datasets={"demo": "", "small": "", "paper": ""},
    folder="peak",
    tuning=ADAPTIVE,
)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The experiment under the name `peak`; runs go on in this process, and their labels are listed."""
    labels: list[str] = []

    def here(title: str, todo: Sequence[Job], options: Any) -> list[Any]:
        for job in todo:
            if read_state(job.path).state == "finished":
                continue
            about = {"experiment": "peak", "scale": options.scale, "run": job.run.name}
            with RunFolder.open(job.path, config=job.run.config, **about) as folder:
                cpu = torch.device("cpu")
                run_work(job.run.start(cpu), folder, device=cpu)
            labels.append(job.label)
        return []

    monkeypatch.setitem(MODULES, "peak", __name__)
    monkeypatch.setattr(tune_module, "driven", here)
    return labels


def tuned(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "peak-demo-tuning" / FILE_NAME).read_text())
    return found


def test_the_grid_extends_until_the_best_rate_lies_inside(done: list[str], tmp_path: Path) -> None:
    assert main(["tune", "peak", "--out", str(tmp_path)]) == 0
    found = tuned(tmp_path)
    assert found["learning_rates"] == pytest.approx(BEST)
    for arm, best in BEST.items():
        rates = sorted(map(float, found["results"][arm]))
        assert rates[0] < best < rates[-1]
    assert min(map(float, found["results"]["high"])) == 1e-3  # only `low` was extended downwards
    assert found["seeds"] == [100, 101, 102]


def test_what_is_finished_is_not_run_again(done: list[str], tmp_path: Path) -> None:
    words = ["tune", "peak", "--out", str(tmp_path), "--extend"]
    assert main([*words, "1"]) == 1  # `high` is still at the end of its grid
    first = list(done)
    assert tuned(tmp_path)["learning_rates"]["high"] == pytest.approx(8e-3)
    done.clear()
    assert main([*words, "6"]) == 0
    assert done
    assert not set(done) & set(first)


def test_a_search_that_is_cut_off_is_concluded_from_what_is_finished(
    done: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tune", "peak", "--out", str(tmp_path), "--rates", "4e-3", "8e-3", "1.6e-2"]
    run_here = tune_module.driven

    def cut_off(title: str, todo: Sequence[Job], how: Any) -> list[Any]:
        assert how.time_limit == pytest.approx(60, abs=5)
        run_here(title, todo[:2], how)
        return [SimpleNamespace(status="to do")]

    monkeypatch.setattr(tune_module, "driven", cut_off)
    assert main([*words, "--time-limit", "60"]) == STOPPED
    assert done == ["low at 0.008", "high at 0.008"]  # the middle of the grid, for all arms
    assert tuned(tmp_path)["finished"] is False
    monkeypatch.setattr(tune_module, "driven", None)  # from here on no run begins
    assert main([*words, "--conclude"]) == 1  # the only rate is an end of its grid
    assert tuned(tmp_path)["learning_rates"] == pytest.approx({"low": 8e-3, "high": 8e-3})
    assert read(tmp_path / "peak-demo-tuning" / FILE_NAME, EXPERIMENT, "demo")
    assert main(["tune", "peak", "--out", str(tmp_path / "new"), "--conclude"]) == 1
    assert "No finished runs of low, high" in capsys.readouterr().out


def test_results_take_each_arm_s_rate_on_other_seeds(
    done: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["tune", "peak", "--out", str(tmp_path)])
    path = tmp_path / "peak-demo-tuning" / FILE_NAME
    assert main(["run", "peak", "--out", str(tmp_path), "--tuned", str(path)]) == 0
    for arm, best in BEST.items():
        folder = tmp_path / "peak-demo-tuned" / arm
        rate = json.loads((folder / "config.json").read_text())["config"]["settings"]["learning_rate"]
        assert rate == pytest.approx(best)
        seeds = {json.loads(line)["seed"] for line in (folder / "rows.jsonl").read_text().splitlines()}
        assert seeds == {0, 1, 2}
        assert max(seeds) < FIRST_TUNING_SEED
    capsys.readouterr()
    assert main(["run", "peak", "--out", str(tmp_path), "--tuned", str(path), "--sharpness", "2"]) == 2
    assert "tuned with other settings" in capsys.readouterr().err


def test_a_search_that_is_not_finished_gives_no_rates(done: list[str], tmp_path: Path) -> None:
    main(["tune", "peak", "--out", str(tmp_path)])
    path = tmp_path / "peak-demo-tuning" / FILE_NAME
    content = json.loads(path.read_text()) | {"finished": False}
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="not finished"):
        read(path, EXPERIMENT, "demo")
    path.write_text(json.dumps(content | {"finished": True}))
    with pytest.raises(ValueError, match="at scale demo, not peak at small"):
        read(path, EXPERIMENT, "small")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning-rate", "1"], "nap tune sets it"),
        (["--seeds", "5"], "nap tune sets it"),
        (["--rates", "1e-3"], "two or more"),
        (["--tuning-seeds", "0"], "at least 1"),
        (["--shard", "1/2"], "leave it out"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    words: list[str], message: str, done: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "peak", "--out", str(tmp_path / "new"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_experiment_about_rates_has_nothing_to_tune(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "fig2", "--out", str(tmp_path)]) == 2
    assert "nothing to tune" in capsys.readouterr().err


@given(
    st.dictionaries(st.floats(1e-6, 1.0), st.lists(st.none() | st.floats(-1, 1), min_size=2, max_size=2)),
    st.sampled_from(["highest", "lowest"]),
)
def test_the_search_goes_on_only_past_an_end(results: dict[float, list[float | None]], goal: Any) -> None:
    if not results:
        return
    found = Sensitivity({rate: tuple(of) for rate, of in results.items()}, {})
    tuning = replace(ADAPTIVE, goal=goal)
    best, beyond = found.best(tuning), found.beyond(tuning, 2.0)
    means = {rate: mean for rate in results if (mean := found.mean(rate)) is not None}
    if best is None:
        assert not means
        assert beyond == min(results) / 2
    else:
        assert means[best] == (max if goal == "highest" else min)(means.values())
        inside = min(results) < best < max(results)
        assert (beyond is None) == inside
        assert beyond is None or not min(results) <= beyond <= max(results)


def test_rows_of_tuning_seeds_decide_no_claim() -> None:
    rows: list[dict[str, Any]] = [
        {"experiment": "walk", "arm": "GD", "seed": seed, "step": step, "dead": 0.1 * step}
        for seed in (0, 1, 2, 100, 101)
        for step in range(6)
    ]
    alone = evaluate(Rows(row for row in rows if row["seed"] < FIRST_TUNING_SEED))
    assert [evidence for _, evidence in evaluate(Rows(rows))] == [evidence for _, evidence in alone]
    assert evaluate(Rows(row for row in rows if row["seed"] >= FIRST_TUNING_SEED)) == []


def test_nap_shares_the_rate_of_the_arm_with_its_rule() -> None:
    """Both are the same network: it is tuned once, under either name."""
    alone = {run.name: run for run in fig1.EXPERIMENT.runs(replace(PAPER, arms=("NaP",)))}["nap-reset"]
    arms: Any = ("NaP", "NaP, affine free", "NaP, affine joint")
    both = {run.config.arm.name: run for run in fig1.EXPERIMENT.runs(replace(PAPER, arms=arms))}
    nap, free, joint = (both[name] for name in arms)  # NaP projects scales and offsets jointly
    assert alone.tuned_as == nap.tuned_as == joint.tuned_as != free.tuned_as
    assert (alone.decides, nap.decides, joint.decides) == (True, False, True)
    assert replace(nap.config.arm, name="") == replace(joint.config.arm, name="")
    assert label(free) == "NaP, affine free, optimizer reset"


def test_the_default_rule_changes_no_run_of_another_arm() -> None:
    """Else all that is stored would have to be run again when the default changes."""
    arms: Any = ("LayerNorm", "fresh", "NaP, affine free", "NaP, no affine")
    runs = [
        fig1.EXPERIMENT.runs(replace(PAPER, arms=arms, affine=rule)) for rule in ("joint", "decay", "free")
    ]
    assert [run.config for run in runs[0]] == [run.config for run in runs[1]]
    assert [run.config for run in runs[0]] == [run.config for run in runs[2]]
    own = [
        fig1.EXPERIMENT.runs(replace(PAPER, arms=("NaP",), affine=rule))[0].config
        for rule in ("joint", "free")
    ]
    assert own[0] != own[1]


def test_the_report_plots_results_against_rates(done: list[str], tmp_path: Path) -> None:
    main(["tune", "peak", "--out", str(tmp_path)])
    (found,) = find(tmp_path)
    assert usable(found.results["low"], highest=True) is not None
    page = report(tmp_path).read_text()
    assert "Learning rates · peak, scale demo" in page
    assert "low: best at 0.001" in page
    assert "seeds 100 to 102, which no result uses" in page


@pytest.mark.slow
def test_tuning_with_real_workers(tmp_path: Path) -> None:
    """Each run in a process of its own; a second call finds all done."""
    size = "--arms NaP --tasks 2 --epochs 1 --images 32 --batch-size 16 --width 8 --depth 1 --probe 8"
    search = "--tuning-seeds 1 --rates 1e-3 1e-2 --extend 0 --device cpu"
    command = ["tune", "fig1", *size.split(), *search.split(), "--out", str(tmp_path)]

    def files() -> dict[Path, int]:
        main(command)  # 1 where the best rate is at an end of so small a grid
        return {file: file.stat().st_mtime_ns for file in tmp_path.rglob("rows.jsonl")}

    first = files()
    assert len(first) == 2
    assert files() == first
    assert len(json.loads((tmp_path / "fig1-demo-tuning" / FILE_NAME).read_text())["results"]) == 1
