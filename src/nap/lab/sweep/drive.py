"""The driver: places jobs, watches their folders, places again what did not finish."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from nap.lab.progress import duration
from nap.lab.runs.signals import StopRequest

from . import beat
from .attempts import BAD_USAGE, FAILED, Next, after
from .engine import End, Engine, Placed
from .found import Found, Mark, look, mark
from .jobs import Job
from .launch import LOG_NAME

LOOK_EVERY_SECONDS, LOOK_SECONDS_A_JOB = 0.1, 0.002
VISIT_EVERY_SECONDS = 1.0  # folders that others work in

Standing = Literal["to do", "placed", "elsewhere", "finished", "failed", "refused"]
OPEN: tuple[Standing, ...] = ("to do", "placed", "elsewhere")


@dataclass
class Tracked:
    """A job and what became of it so far."""

    job: Job
    standing: Standing
    words: str = ""  # why it failed, or who works there
    vain: int = 0  # attempts in a row without a new checkpoint
    placed: Placed | None = None
    began_at: Mark = None  # the checkpoint that its worker found


class View(Protocol):
    """What the driver tells the reader."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def show(self, runs: Sequence[Tracked]) -> None:
        """How things are; called often."""


def tracked(job: Job, found: Found) -> Tracked:
    """A job as its folder says."""
    if found.state == "finished":
        return Tracked(job, "finished")
    return Tracked(job, "elsewhere", found.words) if found.state == "in use" else Tracked(job, "to do")


def drive(
    runs: Sequence[Tracked], engine: Engine, view: View, *, retries: int, stop: StopRequest | None = None
) -> None:
    """Bring every run to its end; `runs` hold what became of each.

    Once a stop is asked for, none is placed any more, and those at work save and end. Where that is not
    waited for, workers are killed; they go on from their last checkpoint another time.
    """
    driver = _Driver(runs, engine, view, retries)
    stop = stop or StopRequest()
    try:
        while any(run.standing in OPEN for run in runs) and stop.signal is None:
            driver.place()
            driver.collect()
            driver.visit()
            view.show(runs)
            driver.rest()
        if stop.signal is not None and driver.at_work():
            view.say(f"{stop.signal}: waiting for {len(driver.at_work())} runs to save")
        for _, placed in driver.at_work():
            placed.stop()
        while driver.at_work():
            driver.collect(stopping=True)
            view.show(runs)
            driver.rest()
    except KeyboardInterrupt:  # a second Ctrl-C
        for _, placed in driver.at_work():
            placed.kill()
        raise


class _Driver:
    def __init__(self, runs: Sequence[Tracked], engine: Engine, view: View, retries: int):
        self.runs, self.engine, self.view, self.retries = runs, engine, view, retries
        self._next_visit = 0.0

    def at_work(self) -> list[tuple[Tracked, Placed]]:
        return [(run, run.placed) for run in self.runs if run.placed is not None]

    def rest(self) -> None:
        """Wait a little; the longer, the more there is to look at."""
        time.sleep(LOOK_EVERY_SECONDS + LOOK_SECONDS_A_JOB * len(self.at_work()))

    def place(self) -> None:
        """Place as many as the engine takes; what was in vain comes after what was not tried yet."""
        waiting = sorted((run for run in self.runs if run.standing == "to do"), key=lambda run: run.vain)
        room = self.engine.workers - len(self.at_work()) if self.engine.workers else len(waiting)
        for run in waiting[: max(0, room)]:
            run.began_at = mark(run.job.path)
            beat.forget(run.job.path)
            run.placed, run.standing, run.words = self.engine.place(run.job), "placed", ""

    def collect(self, *, stopping: bool = False) -> None:
        """See who has ended, and what follows."""
        for run, placed in self.at_work():
            if (end := placed.ended()) is None:
                continue
            run.placed, found = None, look(run.job.path)
            moved = mark(run.job.path) != run.began_at
            step = after(end, found, moved=moved, vain=run.vain, retries=self.retries)
            if stopping and step.step != "finished":
                run.standing = "to do"
                if end.code == FAILED:  # it could not save, for example
                    self.view.say(f"{run.job.label}: {reason(run.job, end)}")
            else:
                self._take(run, step, found, end)

    def visit(self) -> None:
        """Look again at what others worked on."""
        if time.monotonic() < self._next_visit:
            return
        self._next_visit = time.monotonic() + VISIT_EVERY_SECONDS
        for run in self.runs:
            if run.standing == "elsewhere" and (found := look(run.job.path)).state != "in use":
                run.standing, run.words = "to do", ""
                if found.state == "finished":
                    self._take(run, Next("finished", 0), found)

    def _take(self, run: Tracked, step: Next, found: Found, end: End | None = None) -> None:
        """Note what follows, and say it."""
        say, label, run.vain = self.view.say, run.job.label, step.vain
        if step.step == "finished":
            run.standing = "finished"
            say(f"{label}: finished, {duration(found.seconds)} of work")
            return
        assert end is not None
        if step.step == "elsewhere":
            run.standing = "elsewhere"
            run.words = found.words if found.state == "in use" else "in use a moment ago"
            say(f"{label}: {run.words}; waiting for that")
        elif step.step == "again":
            run.standing = "to do"
            vain = f"in vain {step.vain} of {self.retries + 1} times" if step.vain else "it had got on"
            say(f"{label}: {reason(run.job, end)}; to go on from its last checkpoint ({vain})")
        else:
            run.standing, run.words = step.step, reason(run.job, end)
            tried = f"; given up, {step.vain} times in a row in vain" if step.vain > 1 else ""
            say(f"{label}: failed: {run.words}{tried}")


def reason(job: Job, end: End) -> str:
    """Why a worker ended, in its own words if it had some: it wrote them to its log."""
    prefix = {FAILED: f"{job.label}: failed: ", BAD_USAGE: "nap run: "}.get(end.code or 0)
    log = job.path / LOG_NAME
    said = log.read_text("utf-8", errors="replace") if prefix and log.exists() else ""
    if not prefix or prefix not in said:
        return str(end)
    said = said[said.rindex(prefix) + len(prefix) :]
    return said.split("\n")[0] if end.code == FAILED else said.strip()
