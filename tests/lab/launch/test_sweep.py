"""`nap sweep`: what there is to do, where, and mistakes in its words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from changed_folders import begun_with, rewritten
from nap.lab.cli.main import BAD_USAGE, IN_USE, OK, main
from nap.lab.experiments import MODULES, experiments
from nap.lab.launch.engine import Exit
from nap.lab.launch.options import SweepOptions
from nap.lab.launch.pool import GPU, slots, slots_here
from nap.lab.launch.retries import decide
from nap.lab.launch.run_state import RunState, checkpoint_stamp, read_state
from nap.lab.options import RunOptions
from nap.lab.runner import RunFolder
from nap.lab.runner.run import STOPPED
from nap.lab.runner.signals import StopRequest
from small_work import run as session
from sweep_jobs import asked

pytestmark = pytest.mark.multiprocess


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MODULES, "tiny", "tiny_experiment")
    monkeypatch.setitem(MODULES, "counting", "sweep_tiny")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def nap(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    """A command line → exit code, standard output, standard error."""

    def run(line: str) -> tuple[int, str, str]:
        code = main(line.split())
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return code, printed.out, printed.err

    return run


# what there is to do


def test_a_job_is_nap_run_with_one_part_of_it() -> None:
    found = asked("counting --runs 3 --engine ray --out here --workers 7 --force --report --steps=9")
    assert [job.label for job in found] == ["run-0", "run-1", "run-2"]
    assert [str(job.folder) for job in found] == [f"here/counting-demo/run-{n}" for n in range(3)]
    passed_on = f"counting --runs 3 --steps 9 --out {Path.cwd()}/here --threads 1 --shard"
    assert [" ".join(job.command[4:]) for job in found] == [f"{passed_on} {n}/3" for n in (1, 2, 3)]
    assert found[0].path == Path.cwd() / "here/counting-demo/run-0"


def test_a_part_of_a_sweep_has_the_same_jobs_as_the_whole() -> None:
    whole, part = asked("counting --runs 5"), asked("counting --runs 5 --shard 2/2")
    assert [(job.label, job.command) for job in part] == [(job.label, job.command) for job in whole[1::2]]


def test_several_experiments_that_share_runs_share_jobs() -> None:
    found = asked("fig4 stats walk --seeds 3")
    assert len(found) == len({job.folder for job in found}) == 17
    assert found[-1].label == "walk walks"
    assert found[-1].command[4:7] == ("fig4", "stats", "walk")
    assert found[-1].command[-1] == "17/17"


def test_a_folder_says_what_there_is_to_do(tmp_path: Path) -> None:
    assert read_state(tmp_path) == RunState("new")
    stop = StopRequest()
    stop.signal = "SIGTERM"
    session(tmp_path, stop=stop)
    assert read_state(tmp_path).state == "begun"
    assert read_state(tmp_path).detail == "stopped by SIGTERM"
    with RunFolder.open(
        tmp_path, experiment="fig1", scale="demo", run="nap", config={"seeds": 1, "lr": 1e-2}
    ):
        found = read_state(tmp_path)
        assert found.state == "in use"
        assert found.detail.startswith("in use by process")
    before = checkpoint_stamp(tmp_path)
    session(tmp_path)
    assert checkpoint_stamp(tmp_path) != before
    assert read_state(tmp_path).state == "finished"
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("{}\n")
    assert (read_state(tmp_path).state, read_state(tmp_path).is_permanent) == ("damaged", True)
    assert "was edited" in read_state(tmp_path).detail
    again = decide(Exit(1), read_state(tmp_path), progressed=False, attempts=0, retries=2)
    assert again.step == "failed"


def test_a_dry_run_shows_the_plan_and_touches_nothing(nap) -> None:
    code, out, err = nap("sweep counting --runs 2 --dry-run")
    assert (code, err) == (OK, "")
    assert "counting: 2 runs, 2 new" in out
    assert "results/counting-demo/run-1" in out
    assert not Path("results").exists()
    assert nap("run counting --runs 3 --shard 1/3 --seconds-per-step 0")[0] == OK
    # the number of runs is a setting of this experiment, so these are the same ones
    code, out, _ = nap("sweep counting --runs 3 --dry-run")
    assert "3 runs, 1 finished, 2 new" in out


def test_a_dry_run_shows_failures_as_they_were_told_and_what_force_does(
    nap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # nothing is folded
    assert nap("run tiny --mode buggy")[0] == 1
    manifest = Path("results/tiny-demo/first/manifest.json")
    rewritten(manifest, manifest.read_text().replace("a mistake", "sizes [/8] differ"))
    code, out, err = nap("sweep tiny --mode buggy --dry-run")
    assert (code, err) == (OK, "")
    assert re.search(r" failed, 0:\d\d of work: RuntimeError: sizes \[/8\] differ", out)
    assert "start over" not in out
    assert nap("sweep tiny --mode buggy --dry-run --force")[1].count("start over") == 2


# where


def test_slots_are_cores_or_shares_of_gpus() -> None:
    def gpus(options: SweepOptions) -> list[str]:
        return [slot[GPU] for slot in slots(options, cores=8, visible=["0", "1", "GPU-a"])]

    assert gpus(SweepOptions()) == ["0", "1", "GPU-a"]
    assert gpus(SweepOptions(per_gpu=2)) == ["0", "1", "GPU-a"] * 2
    assert gpus(SweepOptions(per_gpu=2, workers=4)) == ["0", "1", "GPU-a", "0"]
    assert gpus(SweepOptions(gpus=(2,))) == ["GPU-a"]
    assert slots(SweepOptions(), cores=8, visible=[]) == [{}] * 8
    assert slots(SweepOptions(threads=3), cores=8, visible=[]) == [{}] * 2
    assert slots(SweepOptions(threads=16), cores=8, visible=[]) == [{}]
    with pytest.raises(ValueError, match="let more runs share a GPU with --per-gpu"):
        gpus(SweepOptions(workers=4))
    with pytest.raises(ValueError, match="--gpus 3: there are 3 GPUs here, counted from 0"):
        gpus(SweepOptions(gpus=(3,)))
    with pytest.raises(ValueError, match="sees no GPU"):
        slots(SweepOptions(per_gpu=2), cores=8, visible=[])


def test_this_machine_s_gpus_are_those_that_torch_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GPU, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert slots_here(SweepOptions()) == [{GPU: "0"}, {GPU: "1"}]
    assert slots_here(SweepOptions(device="cpu", workers=3)) == [{}] * 3
    monkeypatch.setenv(GPU, "3,5")
    assert slots_here(SweepOptions(gpus=(1,))) == [{GPU: "5"}]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="sees no CUDA device"):
        slots_here(SweepOptions(device="cuda"))


# words


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sweep", "name an experiment first: nap sweep fig1"),
        ("sweep tyni", "Did you mean tiny?"),
        ("sweep tiny --enigne ray", "Did you mean --engine?"),
        ("sweep tiny --engine rya", "--engine rya: expected one of local, ray, slurm"),
        ("sweep tiny --workers -1", "--workers -1: it must be at least 0"),
        ("sweep tiny --per-gpu 0", "--per-gpu 0: it must be at least 1"),
        ("sweep tiny --retries many", "--retries many: expected a whole number"),
        ("sweep tiny --steps -5", "steps=-5"),
        ("sweep tiny --parallel fsdp", "--parallel fsdp: a worker of a sweep is one process"),
        ("sweep tiny --shard 3/2", "--shard 3/2: expected two numbers like 2/4"),
        ("sweep tiny --device cpu --gpus 0", "--gpus and --per-gpu: torch sees no GPU here"),
        ("sweep tiny --engine slurm --slurm gpu", "--slurm gpu: expected KEY=VALUE"),
        ("sweep tiny --engine slurm --slurm cluster=local slurm_patrition=x", "Unknown argument 'patrition'"),
    ],
)
def test_mistakes_are_one_line_and_exit_with_2(nap, line: str, message: str) -> None:
    code, out, err = nap(line)
    assert (code, out) == (BAD_USAGE, "")
    assert message in err
    assert err.startswith("nap sweep: ")
    assert err.count("\n") == 1
    assert not Path("results/tiny-demo").exists()


@pytest.mark.parametrize("line", ["sweep -h", "sweep tiny -h"])
def test_help_has_examples(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(line.split())
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert "  nap sweep " in shown
    assert "exit codes" in shown or "CPU threads of each worker; 0 is one." in shown


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_named(nap, engine: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"nap.lab.launch.{engine}_engine", raising=False)
    code, _, err = nap(f"sweep tiny --engine {engine}")
    assert code == BAD_USAGE
    assert f"needs {package}, which is not installed; pip install 'normalize-and-project[lab,sweep]'" in err


def test_other_settings_and_force_on_a_folder_in_use_are_refused(nap) -> None:
    assert nap("run tiny")[0] == OK
    code, _, err = nap("sweep tiny --rate 0.25")
    assert code == BAD_USAGE
    assert "config.rate: 0.5 there, 0.25 now" in err
    job = asked("tiny")[0]
    with RunFolder.open(job.path, **job.settings("demo")):
        code, _, err = nap("sweep tiny --force")
    assert code == IN_USE
    assert "is in use by process" in err


def test_a_folder_that_is_older_than_a_setting_is_taken_up_as_nap_run_does(nap) -> None:
    assert nap("run tiny")[0] == OK
    for file in Path("results").rglob("config.json"):
        settings = json.loads(file.read_text())
        assert settings["config"].pop("rate") == 0.5  # its default
        begun_with(file.parent, settings)
    assert nap("run tiny")[0] == nap("sweep tiny")[0] == OK
    code, _, err = nap("sweep tiny --rate 0.25")
    assert code == BAD_USAGE
    assert "config.rate: not set there, 0.25 now" in err


def test_out_that_is_a_file_is_refused_as_nap_run_does(nap) -> None:
    Path("results").write_text("")
    for options in ("", " --dry-run"):
        code, _, err = nap(f"sweep tiny{options}")
        assert (code, err.removeprefix("nap sweep: ")) == (
            BAD_USAGE,
            nap("run tiny")[2].removeprefix("nap run: "),
        )


def test_torchrun_is_refused(nap, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(key, value)
    code, _, err = nap("sweep tiny")
    assert (code, err) == (
        BAD_USAGE,
        "nap sweep: torchrun started several drivers; give nap sweep without torchrun\n",
    )


def test_force_starts_over_once(nap) -> None:
    assert nap("run counting --runs 1 --steps 5 --seconds-per-step 0")[0] == OK
    folder = Path("results/counting-demo/run-0")
    (folder / "tensorboard").mkdir()
    code, out, _ = nap("sweep counting --runs 1 --steps 3 --force --workers 1 --device cpu")
    assert code == OK, out
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    sessions = json.loads((folder / "manifest.json").read_text())["sessions"]
    assert [each["exit"] for each in sessions] == ["finished"]
    assert not (folder / "tensorboard").exists()


def test_after_force_it_is_the_command_without_it_that_goes_on(nap, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(runs: Any, *_: Any, stop: StopRequest, **__: Any) -> None:
        stop.signal = "SIGINT"

    monkeypatch.setattr("nap.lab.launch.command.drive", stopped)
    code, out, _ = nap("sweep tiny --force --device cpu")
    assert code == STOPPED
    left = "2 of 2 runs are left; the same command without --force resumes them"
    assert out.endswith(f"Stopped by SIGINT, {left}\n")
    assert nap("sweep tiny --device cpu")[1].endswith("runs are left; the same command resumes them\n")
    code, out, _ = nap("run tiny --mode stopped --force")
    assert code == STOPPED
    assert "first: stopped by SIGTERM at 2 of 4 steps; the same command without --force goes on from" in out


def test_without_rows_there_is_no_verdict(nap, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(runs: Any, *_: Any, **__: Any) -> None:
        for run in runs:
            run.status = "refused"

    monkeypatch.setattr("nap.lab.launch.command.drive", refused)
    code, out, _ = nap("sweep tiny --device cpu --report")
    assert code == BAD_USAGE
    assert out.endswith("\nNo results: no run in results/tiny-demo has got far enough\n")


def test_finished_runs_are_skipped_and_judged(nap) -> None:
    assert nap("run tiny")[0] == OK
    code, out, _ = nap("sweep tiny --report")
    assert code == OK
    assert out.startswith("tiny: scale demo, 2 runs, 2 finished already, on ")
    assert out.endswith("Results: results/tiny-demo\nReport: results/tiny-demo/report.html\n")


def test_no_setting_of_an_experiment_has_the_name_of_one_of_the_sweep() -> None:
    own = {field.name for field in fields(SweepOptions)} - {field.name for field in fields(RunOptions)}
    for name, experiment in experiments().items():
        for config in experiment.scales.values():
            assert not own & {field.name for field in fields(config)}, name
