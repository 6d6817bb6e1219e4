"""`nap sweep`: what there is to do, what follows when a worker ends, the view, and mistakes in its words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from nap.lab.cli import BAD_USAGE, FINE, IN_USE, main
from nap.lab.experiments.experiment import MODULES, experiments
from nap.lab.options import How
from nap.lab.runs import RunFolder
from nap.lab.runs.carry import STOPPED
from nap.lab.runs.signals import StopRequest
from nap.lab.sweep import beat, watching
from nap.lab.sweep.attempts import NO_DATA, Next, after
from nap.lab.sweep.command import exit_code
from nap.lab.sweep.drive import drive
from nap.lab.sweep.engine import End, NotTaken
from nap.lab.sweep.found import Found, look, mark
from nap.lab.sweep.how import Sweeping
from nap.lab.sweep.jobs import Job
from nap.lab.sweep.launch import LOG_NAME
from nap.lab.sweep.pool import GPU, Pool, slots, slots_here
from nap.lab.sweep.reasons import reason
from nap.lab.sweep.tracked import Tracked, tracked
from small_work import run as sitting
from sweep_jobs import asked, placed
from sweep_trials import until


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
    passed_on = f"counting --runs 3 --steps 9 --out {Path.cwd()}/here --threads 1 --part"
    assert [" ".join(job.command[4:]) for job in found] == [f"{passed_on} {n}/3" for n in (1, 2, 3)]
    assert found[0].path == Path.cwd() / "here/counting-demo/run-0"


def test_a_part_of_a_sweep_has_the_same_jobs_as_the_whole() -> None:
    whole, part = asked("counting --runs 5"), asked("counting --runs 5 --part 2/2")
    assert [(job.label, job.command) for job in part] == [(job.label, job.command) for job in whole[1::2]]


def test_several_experiments_that_share_runs_share_jobs() -> None:
    found = asked("fig4 stats walk --seeds 3")
    assert len(found) == len({job.folder for job in found}) == 15
    assert found[-1].label == "walk walks"
    assert found[-1].command[4:7] == ("fig4", "stats", "walk")
    assert found[-1].command[-1] == "15/15"


def test_a_folder_says_what_there_is_to_do(tmp_path: Path) -> None:
    assert look(tmp_path) == Found("new")
    stop = StopRequest()
    stop.signal = "SIGTERM"
    sitting(tmp_path, stop=stop)
    assert look(tmp_path).state == "begun"
    assert look(tmp_path).words == "stopped by SIGTERM"
    with RunFolder.open(
        tmp_path, experiment="fig1", scale="demo", run="nap", config={"seeds": 1, "lr": 1e-2}
    ):
        found = look(tmp_path)
        assert found.state == "in use"
        assert found.words.startswith("in use by process")
    before = mark(tmp_path)
    sitting(tmp_path)
    assert mark(tmp_path) != before
    assert look(tmp_path).state == "finished"
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("{}\n")
    assert look(tmp_path).state == "failed"
    assert "was edited" in look(tmp_path).words
    assert after(End(1), look(tmp_path), moved=False, vain=0, retries=2).step == "failed"  # and not again


def test_a_dry_run_shows_the_plan_and_touches_nothing(nap) -> None:
    code, out, err = nap("sweep counting --runs 2 --dry-run")
    assert (code, err) == (FINE, "")
    assert "counting: 2 runs, 2 new" in out
    assert "results/counting-demo/run-1" in out
    assert not Path("results").exists()
    assert nap("run counting --runs 3 --part 1/3 --seconds-per-step 0")[0] == FINE
    # the number of runs is a setting of this experiment, so these are the same ones
    code, out, _ = nap("sweep counting --runs 3 --dry-run")
    assert "3 runs, 1 finished, 2 new" in out


def test_a_dry_run_shows_failures_as_they_were_told_and_what_force_does(
    nap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # nothing is folded
    assert nap("run tiny --mode buggy")[0] == 1
    manifest = Path("results/tiny-demo/first/manifest.json")
    manifest.write_text(manifest.read_text().replace("a mistake", "sizes [/8] differ"))
    code, out, err = nap("sweep tiny --mode buggy --dry-run")
    assert (code, err) == (FINE, "")
    assert re.search(r" failed, 0:\d\d of work: RuntimeError: sizes \[/8\] differ", out)
    assert "start over" not in out
    assert nap("sweep tiny --mode buggy --dry-run --force")[1].count("start over") == 2


# where


def test_slots_are_cores_or_shares_of_gpus() -> None:
    def gpus(how: Sweeping) -> list[str]:
        return [slot[GPU] for slot in slots(how, cores=8, visible=["0", "1", "GPU-a"])]

    assert gpus(Sweeping()) == ["0", "1", "GPU-a"]
    assert gpus(Sweeping(per_gpu=2)) == ["0", "1", "GPU-a"] * 2
    assert gpus(Sweeping(per_gpu=2, workers=4)) == ["0", "1", "GPU-a", "0"]
    assert gpus(Sweeping(gpus=(2,))) == ["GPU-a"]
    assert slots(Sweeping(), cores=8, visible=[]) == [{}] * 8
    assert slots(Sweeping(threads=3), cores=8, visible=[]) == [{}] * 2
    assert slots(Sweeping(threads=16), cores=8, visible=[]) == [{}]
    with pytest.raises(ValueError, match="let more runs share a GPU with --per-gpu"):
        gpus(Sweeping(workers=4))
    with pytest.raises(ValueError, match="--gpus 3: there are 3 GPUs here, counted from 0"):
        gpus(Sweeping(gpus=(3,)))
    with pytest.raises(ValueError, match="sees no GPU"):
        slots(Sweeping(per_gpu=2), cores=8, visible=[])


def test_this_machine_s_gpus_are_those_that_torch_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GPU, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert slots_here(Sweeping()) == [{GPU: "0"}, {GPU: "1"}]
    assert slots_here(Sweeping(device="cpu", workers=3)) == [{}] * 3
    monkeypatch.setenv(GPU, "3,5")
    assert slots_here(Sweeping(gpus=(1,))) == [{GPU: "5"}]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="sees no CUDA device"):
        slots_here(Sweeping(device="cuda"))


# what follows


@pytest.mark.parametrize(
    ("end", "found", "moved", "vain", "expected"),
    [
        (End(0), Found("finished"), True, 2, Next("finished", 0)),
        (End(-9), Found("finished"), False, 0, Next("finished", 0)),  # killed a moment too late
        (End(None, "lost"), Found("finished"), False, 0, Next("finished", 0)),
        (End(1), Found("failed", "failed: OSError"), False, 0, Next("again", 1)),
        (End(1), Found("failed", "failed: OSError"), False, 2, Next("failed", 3)),
        (End(1), Found("failed", "failed: OSError"), True, 2, Next("again", 0)),
        (End(1), Found("failed", "not finite: step 2"), True, 0, Next("failed", 0)),
        (End(2), Found("new"), False, 0, Next("refused", 0)),
        (End(3), Found("begun", "killed"), False, 1, Next("elsewhere", 1)),
        (End(None, "lost"), Found("in use", "in use by process 3"), False, 1, Next("elsewhere", 1)),
        (End(-9), Found("begun", "killed"), False, 0, Next("again", 1)),
        (End(75), Found("begun", "stopped by SIGTERM"), True, 1, Next("again", 0)),
        (End(0), Found("new"), False, 0, Next("again", 1)),  # a worker that did nothing
    ],
)
def test_after(end: End, found: Found, moved: bool, vain: int, expected: Next) -> None:
    assert after(end, found, moved=moved, vain=vain, retries=2) == expected


class Listener:
    """A view that remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def show(self, runs: Any) -> None:
        pass


class Script:
    """An engine whose workers do as they are told: do nothing and end so, or finish the run."""

    words = "a script"

    def __init__(self, *ends: int | str | Exception, workers: int = 1, says: str = ""):
        self.ends, self.workers, self.placed, self.says = list(ends), workers, 0, says

    def place(self, job: Job) -> Any:
        self.placed += 1
        assert not (job.path / beat.FILE_NAME).exists()
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        if self.says:
            with (job.path / LOG_NAME).open("a") as log:
                log.write(self.says)
        if end == "finish":
            Path(job.path).mkdir(parents=True, exist_ok=True)
            (job.path / "rows.jsonl").write_text("")
            manifest = {"finished": "now", "rows_bytes": 0, "sittings": [], "seconds": 3}
            (job.path / "manifest.json").write_text(json.dumps(manifest))
            end = 0
        return SimpleNamespace(ended=lambda: None if end == "works" else End(end))  # type: ignore[arg-type]


def driven(line: str, engine: Script, retries: int = 2) -> tuple[list[Tracked], list[str]]:
    view, runs = Listener(), [tracked(job, look(job.path)) for job in asked(line)]
    drive(runs, engine, view, retries=retries)
    return runs, view.said


def test_what_fails_is_placed_again_until_it_was_in_vain_too_often() -> None:
    engine = Script(1, "finish", 1, 1)  # the second comes before what was tried in vain
    runs, said = driven("counting --runs 2", engine)
    assert [run.standing for run in runs] == ["failed", "finished"]
    assert (engine.placed, exit_code(runs)) == (4, 1)
    why = "its worker ended with exit code 1"
    assert said == [
        f"run-0: {why}; to go on from its last checkpoint (in vain 1 of 3 times)",
        "run-1: finished, 0:03 of work",
        f"run-0: {why}; to go on from its last checkpoint (in vain 2 of 3 times)",
        f"run-0: failed: {why}; given up, 3 times in a row in vain",
    ]


def test_what_is_refused_is_told_in_the_worker_s_words_and_not_tried_again() -> None:
    Path("results/counting-demo/run-0").mkdir(parents=True)
    engine = Script(2, says="counting: ...\nnap run: cannot write in results; choose another folder\n")
    runs, said = driven("counting --runs 1", engine)
    assert said == ["run-0: failed: cannot write in results; choose another folder"]
    assert (engine.placed, exit_code(runs)) == (1, BAD_USAGE)


def test_why_a_worker_ended_is_in_what_it_said_itself() -> None:
    job, log = asked("counting --runs 1")[0], Path("results/counting-demo/run-0/worker.log")
    log.parent.mkdir(parents=True)
    earlier = "run-0: failed: OSError: an old story\nnap run: another old story\n"

    def after_saying(text: str, code: int | None) -> str:
        log.write_text(earlier + text)
        return reason(job, End(code, "lost"), since=len(earlier))

    assert after_saying("", 1) == "its worker ended with exit code 1"
    assert after_saying("...\nrun-0: failed: OSError: new\n...\n", 1) == "OSError: new"
    assert after_saying("...\nnap run: [Errno 28] full\n", 1) == "[Errno 28] full"
    assert after_saying("nap: out of luck\n", 7) == "out of luck"
    said = after_saying("Traceback:\n  line\nImportError: no\n\n", 1)
    assert said == f"its worker ended with exit code 1: ImportError: no (more in {log})"
    assert after_saying("nap run: interrupted\n", -9) == "its worker was killed by SIGKILL"
    assert after_saying("stopped by SIGTERM\n", 75) == "its worker ended with exit code 75"
    assert after_saying("...\n", None) == "its worker was lost: lost"


def test_what_needs_the_same_missing_data_is_not_begun() -> None:
    for number in range(3):
        Path(f"results/counting-demo/run-{number}").mkdir(parents=True)
    engine = Script(NO_DATA, says="nap run: cifar10 is not complete; run: nap data fetch cifar10\n")
    runs, said = driven("counting --runs 3", engine)
    assert (engine.placed, exit_code(runs)) == (1, BAD_USAGE)
    assert said == [
        "run-0: failed: cifar10 is not complete; run: nap data fetch cifar10",
        "2 runs of counting not begun, for the same reason",
    ]


def test_runs_that_need_other_data_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [tracked(job, Found("new")) for job in asked("fig1 walk --seeds 1")]
    assert len({run.needs for run in runs}) == 2
    assert runs[0].needs == runs[1].needs != runs[-1].needs


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock for the driver, which rests in no time; an engine that is full is asked at these seconds."""
    now = [0.0]
    monkeypatch.setattr("nap.lab.sweep.drive.time.monotonic", lambda: now[0])
    monkeypatch.setattr("nap.lab.sweep.drive.time.sleep", lambda _: now.__setitem__(0, now[0] + 5))
    return now


def test_an_engine_that_is_full_is_waited_for_and_nothing_counts_as_in_vain(seconds: list[float]) -> None:
    full = NotTaken("QOSMaxSubmitJobPerUserLimit")
    engine = Script(full, full, "finish", full, "finish")
    runs, said = driven("counting --runs 2", engine, retries=0)
    assert exit_code(runs) == 0
    assert said == [
        "a script takes no more for now: QOSMaxSubmitJobPerUserLimit; waiting with 2 runs",
        "run-0: finished, 0:03 of work",
        "run-1: finished, 0:03 of work",
    ]
    assert 60 + 120 + 60 <= seconds[0] < 60 + 120 + 60 + 60


def test_an_engine_that_takes_nothing_is_given_up(seconds: list[float]) -> None:
    runs, said = driven("counting --runs 2", engine := Script(*[NotTaken("invalid partition")] * 3))
    assert (engine.placed, exit_code(runs)) == (3, 1)
    assert said[1:] == ["2 runs failed: a script took none, 3 times: invalid partition"]


def test_a_run_that_cannot_be_begun_does_not_end_the_others() -> None:
    jobs_ = asked("counting --runs 2")
    bad, good = jobs_[0], placed(jobs_[1], "raise SystemExit(2)")
    runs, view = [Tracked(bad, "to do"), Tracked(good, "to do")], Listener()
    drive(runs, pool := Pool([{}]), view, retries=1)
    assert [run.standing for run in runs] == ["failed", "refused"]
    assert any("run-0: failed: no worker could be begun: [Errno 2]" in line for line in view.said)
    until(pool.place(good).ended)  # the slot is free


def test_a_second_interrupt_kills_what_is_at_work() -> None:
    killed: list[str] = []

    class Works(Script):
        def place(self, job: Job) -> Any:
            return SimpleNamespace(ended=lambda: None, kill=lambda: killed.append(job.label))

    class Impatient(Listener):
        def show(self, runs: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(
            [tracked(job, Found("new")) for job in asked("counting --runs 2")],
            Works(workers=2),
            Impatient(),
            retries=0,
        )
    assert killed == ["run-0", "run-1"]


def test_what_an_earlier_worker_told_is_forgotten() -> None:
    job = asked("counting --runs 1")[0]
    job.path.mkdir(parents=True)
    (job.path / beat.FILE_NAME).write_text('{"done": 9, "total": 9, "unit": "steps"}')
    assert beat.read(job.path) is not None
    driven("counting --runs 1", engine := Script("finish"))  # which sees that it is gone
    assert engine.placed == 1


def test_what_is_finished_is_not_placed() -> None:
    driven("counting --runs 1", Script("finish"))
    runs, said = driven("counting --runs 1", engine := Script())
    assert (engine.placed, said, exit_code(runs)) == (0, [], 0)


def test_a_folder_in_use_is_waited_for() -> None:
    job = asked("counting --runs 1")[0]
    held = RunFolder.open(job.path, **job.settings("demo"))
    runs = [tracked(job, look(job.path))]
    assert runs[0].standing == "elsewhere"

    class LetGo(Listener):
        def show(self, runs: Any) -> None:
            held.close()

    drive(runs, engine := Script("finish"), LetGo(), retries=0)
    assert (engine.placed, exit_code(runs)) == (1, 0)


def test_a_stop_leaves_the_rest_for_another_time() -> None:
    stop, runs = StopRequest(), [tracked(job, Found("new")) for job in asked("counting --runs 2")]
    stop.signal = "SIGTERM"
    drive(runs, Script(), Listener(), retries=0, stop=stop)
    assert exit_code(runs) == 75


# the view


def two_runs() -> list[Tracked]:
    runs = [tracked(job, Found("new")) for job in asked("counting --runs 3")]
    runs[0].standing, runs[1].standing = "placed", "placed"
    runs[0].job.path.mkdir(parents=True)
    return runs


def tell(run: Tracked, done: int) -> None:
    (run.job.path / beat.FILE_NAME).write_text(json.dumps({"done": done, "total": 100, "unit": "steps"}))


def test_lines_in_a_log_say_how_far_all_runs_are() -> None:
    now, out, runs = [0.0], StringIO(), two_runs()
    lines = watching.Lines(Console(file=out, width=40), "queued", clock=lambda: now[0])
    for second in range(21):
        now[0] = float(second)
        tell(runs[0], second)
        lines.show(runs)
    assert out.getvalue().splitlines() == [
        "0/3 runs finished, 1 at work, 1 queued, 1 to do  4:50 left",
        "0/3 runs finished, 1 at work, 1 queued, 1 to do  4:40 left",
    ]


def test_bars_in_a_terminal_show_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_EVERY_SECONDS", 0.0)
    runs, out = two_runs(), StringIO()
    tell(runs[0], 25)
    console = Console(file=out, width=100, height=20, force_terminal=True, color_system=None)
    with watching.view("counting", console=console) as show:
        show.show(runs)
        runs[1].standing, runs[1].words = "elsewhere", "in use by process 7"
        show.show(runs)
        runs[0].standing = "finished"
        show.show(runs)
        show.say("a note")
    text = out.getvalue()
    for words in ("25/100 steps", "in use by process 7", "a note", "1/3 runs finished, 1 in use elsewhere"):
        assert words in text


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
        ("sweep tiny --spread fsdp", "--spread fsdp: a worker of a sweep is one process"),
        ("sweep tiny --part 3/2", "--part 3/2: expected two numbers like 2/4"),
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
    assert "exit codes" in shown or "CPU threads of each worker; 0 takes one." in shown


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_named(nap, engine: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"nap.lab.sweep.{engine}_engine", raising=False)
    code, _, err = nap(f"sweep tiny --engine {engine}")
    assert code == BAD_USAGE
    assert f"needs {package}, which is not installed; pip install 'normalize-and-project[lab,sweep]'" in err


def test_other_settings_and_force_on_a_folder_in_use_are_refused(nap) -> None:
    assert nap("run tiny")[0] == FINE
    code, _, err = nap("sweep tiny --rate 0.25")
    assert code == BAD_USAGE
    assert "config.rate: 0.5 there, 0.25 now" in err
    job = asked("tiny")[0]
    with RunFolder.open(job.path, **job.settings("demo")):
        code, _, err = nap("sweep tiny --force")
    assert code == IN_USE
    assert "is in use by process" in err


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
    assert nap("run counting --runs 1 --steps 5 --seconds-per-step 0")[0] == FINE
    folder = Path("results/counting-demo/run-0")
    (folder / "tensorboard").mkdir()
    code, out, _ = nap("sweep counting --runs 1 --steps 3 --force --workers 1 --device cpu")
    assert code == FINE, out
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    sittings = json.loads((folder / "manifest.json").read_text())["sittings"]
    assert [each["exit"] for each in sittings] == ["finished"]
    assert not (folder / "tensorboard").exists()


def test_after_force_it_is_the_command_without_it_that_goes_on(nap, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(runs: Any, *_: Any, stop: StopRequest, **__: Any) -> None:
        stop.signal = "SIGINT"

    monkeypatch.setattr("nap.lab.sweep.command.drive", stopped)
    code, out, _ = nap("sweep tiny --force --device cpu")
    assert code == STOPPED
    assert out.endswith("Stopped by SIGINT, 2 of 2 runs are left; the same command without --force goes on\n")
    assert nap("sweep tiny --device cpu")[1].endswith("runs are left; the same command goes on\n")
    code, out, _ = nap("run tiny --mode stopped --force")
    assert code == STOPPED
    assert "first: stopped by SIGTERM at 2 of 4 steps; the same command without --force goes on from" in out


def test_without_rows_there_is_no_verdict(nap, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(runs: Any, *_: Any, **__: Any) -> None:
        for run in runs:
            run.standing = "refused"

    monkeypatch.setattr("nap.lab.sweep.command.drive", refused)
    code, out, _ = nap("sweep tiny --device cpu --report")
    assert code == BAD_USAGE
    assert out.endswith("\nNo results: no run in results/tiny-demo has got far enough\n")


def test_finished_runs_are_skipped_and_judged(nap) -> None:
    assert nap("run tiny")[0] == FINE
    code, out, _ = nap("sweep tiny --report")
    assert code == FINE
    assert out.startswith("tiny: scale demo, 2 runs, 2 finished already, on ")
    assert out.endswith("Results: results/tiny-demo\nReport: results/tiny-demo/report.html\n")


def test_no_setting_of_an_experiment_has_the_name_of_one_of_the_sweep() -> None:
    own = {field.name for field in fields(Sweeping)} - {field.name for field in fields(How)}
    for name, experiment in experiments().items():
        for config in experiment.scales.values():
            assert not own & {field.name for field in fields(config)}, name
