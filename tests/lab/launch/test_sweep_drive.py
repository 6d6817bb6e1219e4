"""The driver of a sweep: what follows when a worker ends, and what the reader sees of it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from nap.lab.cli.main import BAD_USAGE
from nap.lab.experiments import MODULES
from nap.lab.launch import heartbeat, watching
from nap.lab.launch.command import exit_code
from nap.lab.launch.drive import drive
from nap.lab.launch.engine import EngineFull, Exit
from nap.lab.launch.jobs import Job
from nap.lab.launch.pool import Pool
from nap.lab.launch.retries import NO_DATA, Decision, Tracked, decide, exit_reason, track
from nap.lab.launch.run_state import RunState, read_state
from nap.lab.launch.worker_process import LOG_NAME
from nap.lab.runner import RunFolder
from nap.lab.runner.signals import StopRequest
from sweep_jobs import asked, placed
from sweep_trials import until

pytestmark = pytest.mark.multiprocess


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MODULES, "tiny", "tiny_experiment")
    monkeypatch.setitem(MODULES, "counting", "sweep_tiny")
    monkeypatch.chdir(tmp_path)


# what follows


@pytest.mark.parametrize(
    ("end", "found", "progressed", "attempts", "expected"),
    [
        (Exit(0), RunState("finished"), True, 2, Decision("finished", 0)),
        (Exit(-9), RunState("finished"), False, 0, Decision("finished", 0)),  # killed a moment too late
        (Exit(None, "lost"), RunState("finished"), False, 0, Decision("finished", 0)),
        (Exit(1), RunState("failed", "failed: OSError"), False, 0, Decision("again", 1)),
        (Exit(1), RunState("failed", "failed: OSError"), False, 2, Decision("failed", 3)),
        (Exit(1), RunState("failed", "failed: OSError"), True, 2, Decision("again", 0)),
        (Exit(1), RunState("failed", "not finite: step 2"), True, 0, Decision("failed", 0)),
        (Exit(2), RunState("new"), False, 0, Decision("refused", 0)),
        (Exit(3), RunState("begun", "killed"), False, 1, Decision("elsewhere", 1)),
        (Exit(None, "lost"), RunState("in use", "in use by process 3"), False, 1, Decision("elsewhere", 1)),
        (Exit(-9), RunState("begun", "killed"), False, 0, Decision("again", 1)),
        (Exit(75), RunState("begun", "stopped by SIGTERM"), True, 1, Decision("again", 0)),
        (Exit(0), RunState("new"), False, 0, Decision("again", 1)),  # a worker that did nothing
    ],
)
def test_after(end: Exit, found: RunState, progressed: bool, attempts: int, expected: Decision) -> None:
    assert decide(end, found, progressed=progressed, attempts=attempts, retries=2) == expected


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

    description = "a script"

    def __init__(self, *ends: int | str | Exception, workers: int = 1, says: str = ""):
        self.ends, self.workers, self.placed, self.says = list(ends), workers, 0, says

    def submit(self, job: Job) -> Any:
        self.placed += 1
        assert not (job.path / heartbeat.FILE_NAME).exists()
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        if self.says:
            with (job.path / LOG_NAME).open("a") as log:
                log.write(self.says)
        if end == "finish":
            Path(job.path).mkdir(parents=True, exist_ok=True)
            (job.path / "rows.jsonl").write_text("")
            manifest = {"finished": "now", "rows_bytes": 0, "sessions": [], "seconds": 3}
            (job.path / "manifest.json").write_text(json.dumps(manifest))
            end = 0
        return SimpleNamespace(poll=lambda: None if end == "works" else Exit(end))  # type: ignore[arg-type]


def driven(line: str, engine: Script, retries: int = 2) -> tuple[list[Tracked], list[str]]:
    view, runs = Listener(), [track(job, read_state(job.path)) for job in asked(line)]
    drive(runs, engine, view, retries=retries)
    return runs, view.said


def test_a_failing_run_is_retried_until_its_attempts_are_used_up() -> None:
    engine = Script(1, "finish", 1, 1)  # the second comes before what failed
    runs, said = driven("counting --runs 2", engine)
    assert [run.status for run in runs] == ["failed", "finished"]
    assert (engine.placed, exit_code(runs)) == (4, 1)
    why = "its worker ended with exit code 1"
    assert said == [
        f"run-0: {why}; to resume from its last checkpoint (1 of 3 attempts without a checkpoint)",
        "run-1: finished, 0:03 of work",
        f"run-0: {why}; to resume from its last checkpoint (2 of 3 attempts without a checkpoint)",
        f"run-0: failed: {why}; given up after 3 attempts without a checkpoint",
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
        return exit_reason(job, Exit(code, "lost"), since=len(earlier))

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
    runs = [track(job, RunState("new")) for job in asked("fig1 walk --seeds 1")]
    assert len({run.data for run in runs}) == 2
    assert runs[0].data == runs[1].data != runs[-1].data


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock for the driver, which rests in no time; an engine that is full is asked at these seconds."""
    now = [0.0]
    monkeypatch.setattr("nap.lab.launch.drive.time.monotonic", lambda: now[0])
    monkeypatch.setattr("nap.lab.launch.drive.time.sleep", lambda _: now.__setitem__(0, now[0] + 5))
    return now


def test_an_engine_that_is_full_is_waited_for_and_nothing_counts_as_in_vain(seconds: list[float]) -> None:
    full = EngineFull("QOSMaxSubmitJobPerUserLimit")
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
    runs, said = driven("counting --runs 2", engine := Script(*[EngineFull("invalid partition")] * 3))
    assert (engine.placed, exit_code(runs)) == (3, 1)
    assert said[1:] == ["2 runs failed: a script took none, 3 times: invalid partition"]


def test_a_run_that_cannot_be_begun_does_not_end_the_others() -> None:
    jobs_ = asked("counting --runs 2")
    bad, good = jobs_[0], placed(jobs_[1], "raise SystemExit(2)")
    runs, view = [Tracked(bad, "to do"), Tracked(good, "to do")], Listener()
    drive(runs, pool := Pool([{}]), view, retries=1)
    assert [run.status for run in runs] == ["failed", "refused"]
    assert any("run-0: failed: no worker could be started: [Errno 2]" in line for line in view.said)
    until(pool.submit(good).poll)  # the slot is free


def test_a_second_interrupt_kills_what_is_at_work() -> None:
    killed: list[str] = []

    class Works(Script):
        def submit(self, job: Job) -> Any:
            return SimpleNamespace(poll=lambda: None, kill=lambda: killed.append(job.label))

    class Impatient(Listener):
        def show(self, runs: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(
            [track(job, RunState("new")) for job in asked("counting --runs 2")],
            Works(workers=2),
            Impatient(),
            retries=0,
        )
    assert killed == ["run-0", "run-1"]


def test_what_an_earlier_worker_told_is_forgotten() -> None:
    job = asked("counting --runs 1")[0]
    job.path.mkdir(parents=True)
    (job.path / heartbeat.FILE_NAME).write_text('{"done": 9, "total": 9, "unit": "steps"}')
    assert heartbeat.read(job.path) is not None
    driven("counting --runs 1", engine := Script("finish"))  # which sees that it is gone
    assert engine.placed == 1


def test_what_is_finished_is_not_placed() -> None:
    driven("counting --runs 1", Script("finish"))
    runs, said = driven("counting --runs 1", engine := Script())
    assert (engine.placed, said, exit_code(runs)) == (0, [], 0)


def test_a_folder_in_use_is_waited_for() -> None:
    job = asked("counting --runs 1")[0]
    held = RunFolder.open(job.path, **job.settings("demo"))
    runs = [track(job, read_state(job.path))]
    assert runs[0].status == "elsewhere"

    class LetGo(Listener):
        def show(self, runs: Any) -> None:
            held.close()

    drive(runs, engine := Script("finish"), LetGo(), retries=0)
    assert (engine.placed, exit_code(runs)) == (1, 0)


def test_a_stop_leaves_the_rest_for_another_time() -> None:
    stop, runs = StopRequest(), [track(job, RunState("new")) for job in asked("counting --runs 2")]
    stop.signal = "SIGTERM"
    drive(runs, Script(), Listener(), retries=0, stop=stop)
    assert exit_code(runs) == 75


def test_the_time_limit_stops_as_a_signal_does() -> None:
    """Nothing is placed after it, and the run under way is told to save."""
    now, told = [0.0], []
    stop = StopRequest(60.0, clock=lambda: now[0])
    runs = [track(job, RunState("new")) for job in asked("counting --runs 2")]

    class Slow(Script):
        def submit(self, job: Job) -> Any:
            now[0] += 61.0
            return SimpleNamespace(
                poll=lambda: Exit(75) if told else None, stop=lambda: told.append(job.label)
            )

    view = Listener()
    drive(runs, Slow(), view, retries=0, stop=stop)
    assert told == ["run-0"]
    assert view.said == ["the time limit: waiting for 1 runs to save"]
    assert [run.status for run in runs] == ["to do", "to do"]
    assert exit_code(runs) == 75


# the view


def two_runs() -> list[Tracked]:
    runs = [track(job, RunState("new")) for job in asked("counting --runs 3")]
    runs[0].status, runs[1].status = "submitted", "submitted"
    runs[0].job.path.mkdir(parents=True)
    return runs


def tell(run: Tracked, done: int) -> None:
    (run.job.path / heartbeat.FILE_NAME).write_text(json.dumps({"done": done, "total": 100, "unit": "steps"}))


def test_lines_in_a_log_say_how_far_all_runs_are() -> None:
    now, out, runs = [0.0], StringIO(), two_runs()
    lines = watching.Lines(Console(file=out, width=40), "queued", clock=lambda: now[0])
    for second in range(21):
        now[0] = float(second)
        tell(runs[0], second)
        lines.show(runs)
    assert out.getvalue().splitlines() == [
        "0/3 runs finished, 1 running, 1 queued, 1 to do  4:50 left",
        "0/3 runs finished, 1 running, 1 queued, 1 to do  4:40 left",
    ]


def test_bars_in_a_terminal_show_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "READ_EVERY_SECONDS", 0.0)
    runs, out = two_runs(), StringIO()
    tell(runs[0], 25)
    console = Console(file=out, width=100, height=20, force_terminal=True, color_system=None)
    with watching.view("counting", console=console) as show:
        show.show(runs)
        runs[1].status, runs[1].detail = "elsewhere", "in use by process 7"
        show.show(runs)
        runs[0].status = "finished"
        show.show(runs)
        show.say("a note")
    text = out.getvalue()
    for words in ("25/100 steps", "in use by process 7", "a note", "1/3 runs finished, 1 in use elsewhere"):
        assert words in text
