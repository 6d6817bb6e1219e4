"""The command `nap`: runs, results and data from a terminal, and how mistakes are run_command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest

from nap.lab import rows
from nap.lab.board import metrics
from nap.lab.cli.main import BAD_USAGE, IN_USE, OK, PROBLEMS, main
from nap.lab.cli.options import parse
from nap.lab.datasets.catalog import DATA_SETS
from nap.lab.experiments import MODULES, experiments
from nap.lab.experiments.running import pick_device
from nap.lab.options import RunOptions

STOPPED = 75
SUPPORT = Path(__file__).parents[1] / "support"
BUILT = [name for name, module in MODULES.items() if find_spec(module)]


@pytest.fixture(autouse=True)
def _only_these_experiments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(MODULES):
        if name not in BUILT:
            monkeypatch.delitem(MODULES, name)
    monkeypatch.setitem(MODULES, "tiny", "tiny_experiment")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def nap(capsys: pytest.CaptureFixture[str]):
    """A command line → exit code, standard output, standard error."""

    def run(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return code, printed.out, printed.err

    return run


# nap run


def test_a_run_leaves_rows_claims_and_a_hint(nap) -> None:
    code, out, err = nap("run tiny --seeds 2")
    assert (code, err) == (OK, "")
    first_line = out.splitlines()[0]
    for words in ("tiny", "scale demo", "2 runs", "2 seeds", "data none", "cpu", "results/tiny-demo"):
        assert words in first_line
    assert "first: finished, 4 steps" in out
    assert out.endswith("Results: results/tiny-demo\nFigures: nap report results/tiny-demo\n")
    found = rows.read("results/tiny-demo")
    assert len(found) == 2 * 2 * 4
    assert found.unique("run") == ["first", "second"]
    about = json.loads(Path("results/tiny-demo/first/config.json").read_text())
    assert about["config"]["seeds"] == 2
    assert about["scale"] == "demo"


def test_what_is_finished_is_not_done_again(nap) -> None:
    nap("run tiny")
    before = Path("results/tiny-demo/first/rows.jsonl").stat().st_mtime_ns
    code, out, _ = nap("run tiny")
    assert code == OK
    assert out.count("finished already") == 2
    assert Path("results/tiny-demo/first/rows.jsonl").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("wild", "failed: NotFinite: step 2, member 0: the loss is nan"),
        ("buggy", "failed: RuntimeError: a mistake in two lines"),
    ],
)
def test_a_failed_run_is_reported_and_the_others_go_on(nap, mode: str, words: str) -> None:
    code, out, _ = nap(f"run tiny --mode {mode}")
    assert code == PROBLEMS
    assert f"first: {words}" in out
    assert "second: finished" in out
    assert "Traceback" in Path("results/tiny-demo/first/failure.txt").read_text()


def test_a_signal_saves_and_the_same_command_goes_on(nap) -> None:
    code, out, _ = nap("run tiny --mode stopped")
    assert code == STOPPED
    assert "first: stopped by SIGTERM at 2 of 4 steps; the same command goes on from there" in out
    assert "Results" not in out
    assert not list(rows.read("results").where(run="second"))
    code, out, _ = nap("run tiny --mode stopped")
    assert code == OK
    assert rows.read("results").where(run="first", seed=0).values("task") == [1, 2, 3, 4]


def test_other_settings_in_the_same_folder_are_refused_unless_forced(nap) -> None:
    nap("run tiny")
    code, _, err = nap("run tiny --rate 0.25")
    assert code == BAD_USAGE
    assert "config.rate: 0.5 there, 0.25 now" in err
    assert "--force" in err
    code, out, _ = nap("run tiny --rate 0.25 --force")
    assert code == OK
    assert "first: finished, 4 steps" in out


def test_every_folder_is_checked_before_the_first_run_starts(nap) -> None:
    nap("run tiny")
    path = Path("results/tiny-demo/second/config.json")
    path.write_text(path.read_text().replace("0.5", "0.75"))
    for file in Path("results/tiny-demo/first").iterdir():
        file.unlink()
    assert nap("run tiny")[0] == BAD_USAGE
    assert not Path("results/tiny-demo/first/rows.jsonl").exists()


def test_several_experiments_take_settings_that_all_of_them_have(nap) -> None:
    code, out, _ = nap("run tiny walk --seeds 3 --steps 10 --out here")
    assert code == OK
    assert "tiny second: finished" in out
    assert "walk walks: finished, 10 steps" in out
    assert rows.read("here/walk-demo").unique("seed") == [0, 1, 2]
    code, _, err = nap("run tiny walk --width 16")
    assert code == BAD_USAGE
    assert "tiny has no setting --width 16" in err


def test_shards_divide_the_runs_among_processes(nap) -> None:
    for shard, name in (("1/2", "first"), ("2/2", "second")):
        code, out, _ = nap(f"run tiny --shard {shard}")
        assert code == OK
        assert f"shard {shard}" in out.splitlines()[0]
        assert re.findall(r"(\w+): finished,", out) == [name]
    _, out, _ = nap("run tiny")
    assert out.count("finished already") == 2


def test_missing_data_is_bad_usage_with_a_way_out(nap) -> None:
    code, _, err = nap("run tiny --mode no-data")
    assert code == BAD_USAGE
    assert err == "nap run: cifar10 is not complete; run: nap data fetch cifar10\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run tyni", f"no experiment 'tyni'; there are {', '.join([*BUILT, 'tiny'])}. Did you mean tiny?"),
        ("run", "name an experiment first"),
        ("run tiny --stpes 3", "Did you mean --steps?"),
        ("run fig1 --lr 1e-3", "Did you mean --learning-rate?"),
        ("run fig5", "Did you mean fig5-sequential or fig5-suite?"),
        ("run tiny --steps many", "--steps many: expected a whole number"),
        ("run tiny --steps -5", "steps=-5"),
        ("run tiny --shard 3/2", "--shard 3/2: expected two numbers like 2/4"),
        ("run tiny --shard 9/9", "so this shard has none"),
        ("run tiny --scale huge", "--scale huge: expected one of demo, small, paper"),
        ("run walk --record-every 2000", "record_every must be between 1 and 1000"),
        ("claims nowhere", "no folder nowhere"),
        ("report nowhere", "no folder nowhere"),
        ("data fetch cifra10", "did you mean 'cifar10'?"),
        ("data fetch mnist --from nowhere", "nowhere, does not exist"),
    ],
)
def test_mistakes_are_one_line_and_exit_with_2(nap, line: str, message: str) -> None:
    code, out, err = nap(line)
    assert (code, out) == (BAD_USAGE, "")
    assert message in err
    assert err.startswith(f"nap {line.split()[0]}: ")
    assert err.count("\n") == 1
    assert not Path("results").exists()


def test_cuda_where_there_is_none(nap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = nap("run tiny --device cuda")
    assert code == BAD_USAGE
    assert "torch sees no CUDA device here; take --device cpu" in err
    assert pick_device("auto").type == "cpu"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert [pick_device(word).type for word in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]


def test_a_missing_package_is_named(nap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tyro", None)
    code, _, err = nap("run tiny")
    assert code == BAD_USAGE
    assert "needs tyro, which is not installed; pip install 'normalize-and-project[lab]'" in err


def test_walk_from_run_to_report(nap) -> None:
    code, out, _ = nap("run walk --width 64 --seeds 4 --record-every 50 --report")
    assert code == OK
    assert "Under RMSProp" in out  # a claim
    assert out.endswith("Report: results/walk-demo/report.html\n")
    assert "<svg" in Path("results/walk-demo/report.html").read_text()
    code, out, _ = nap("claims results --json")
    assert code == PROBLEMS  # not every claim on the walks holds
    assert json.loads(out)
    code, out, _ = nap("report results --out page.html")
    assert (code, out) == (OK, "page.html\n")


@pytest.mark.parametrize("name", BUILT)
def test_every_experiment_is_whole(name: str) -> None:
    experiment = experiments([name])[name]
    assert experiment.name == name
    assert list(experiment.scales) == ["demo", "small", "paper"]
    assert set(experiment.datasets) <= set(experiment.scales)
    assert {name for names in experiment.datasets.values() for name in names.split(", ")} <= {"", *DATA_SETS}
    for scale, config in experiment.scales.items():
        assert not {field.name for field in fields(config)} & {field.name for field in fields(RunOptions)}
        assert parse(name, experiment.scales, ["--scale", scale, "--seeds", "2"]).config.seeds == 2
        names = [run.name for run in experiment.runs(config)]
        assert names
        assert len(set(names)) == len(names)
        assert all(re.fullmatch(r"[a-z0-9.-]+", run) for run in names), names


# TensorBoard


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(e.step, round(e.value, 4)) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_tensorboard_has_each_point_once_over_sittings(nap) -> None:
    nap("run tiny --mode stopped --seeds 2")  # the first session logs nothing
    nap("run tiny --mode stopped --seeds 2 --tensorboard")
    expected = [(1, 1.0), (2, 0.5), (3, 0.3333), (4, 0.25)]
    found = points(Path("results/tiny-demo/first/tensorboard/first"))
    assert found == {"loss/seed 0": expected, "loss/seed 1": expected}


def test_tensorboard_shows_what_was_measured() -> None:
    row = {"arm": "NaP", "nap": True, "seed": 1, "task": 2, "step": 3, "loss": 0.5, "dead": 0, "rank": None}
    assert metrics(row) == {"loss": 0.5, "dead": 0}


# the other commands


def test_list_has_every_experiment(nap) -> None:
    code, out, _ = nap("list")
    assert code == OK
    for words in ("tiny", "walk", "One can count.", "paper", "cifar10"):
        assert words in out


def test_data_list_and_fetch(nap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAP_DATA", str(tmp_path / "data"))
    code, out, _ = nap("data list")
    assert code == OK
    assert "nap data fetch cifar10" in out
    code, out, err = nap("data fetch digits")
    assert code == OK
    assert "comes with scikit-learn" in err


@pytest.mark.parametrize(
    "line",
    ["--help", "list -h", "run -h", "run tiny -h", "claims -h", "report -h", "data -h", "data fetch -h"],
)
def test_help_has_an_example(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(line.split())
    assert exit_.value.code == 0
    words = [word for word in line.split() if not word.startswith("-")]
    assert "  nap " + " ".join(words) in capsys.readouterr().out.replace("example: nap", "  nap")


# real processes


def command(*words: str) -> list[str]:
    code = (
        "import sys; from nap.lab.cli import main; from nap.lab.experiments import MODULES; "
        "MODULES['tiny'] = 'tiny_experiment'; sys.exit(main())"
    )
    return [sys.executable, "-c", code, *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "OMP_NUM_THREADS": "1"}


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not (path.exists() and path.stat().st_size):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


@pytest.mark.slow
def test_a_process_is_stopped_and_a_second_one_is_kept_out() -> None:
    words = ["run", "tiny", "--steps", "500", "--seconds-per-step", "0.05"]
    first = subprocess.Popen(
        command(*words), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(Path("results/tiny-demo/first/rows.jsonl"), first)
        second = subprocess.run(command(*words), env=environment(), capture_output=True, text=True)
        assert second.returncode == IN_USE
        assert f"is in use by process {first.pid}" in second.stderr
        first.send_signal(signal.SIGTERM)
        out, err = first.communicate()
    finally:
        first.kill()
    assert first.returncode == STOPPED, err
    assert "stopped by SIGTERM" in out
    assert "Traceback" not in out + err + second.stderr


def test_help_and_claims_start_without_torch() -> None:
    run = Path("results/walk-demo/walks")
    run.mkdir(parents=True)
    (run / "rows.jsonl").write_text(
        '{"experiment": "walk", "arm": "GD", "seed": 0, "step": 0, "dead": 0.5}\n'
    )
    for words in (["--help"], ["claims", "results"], ["data", "list"], ["run", "--help"], ["run", "nothing"]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "nap", *words], capture_output=True, text=True
        )
        imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if "|" in line}
        assert "argparse" in imported
        assert "torch" not in imported, words
