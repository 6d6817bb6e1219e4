"""The driver: places jobs, watches their folders, places again what did not finish."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from nap.lab.launch import heartbeat, worker_process
from nap.lab.launch.engine import End, Engine, NotTaken, Placed
from nap.lab.launch.retries import FAILED, NO_DATA, OPEN, Next, Tracked, after, counted, reason
from nap.lab.launch.run_state import RunState, mark, read_state
from nap.lab.progress import duration
from nap.lab.runner.signals import StopRequest

LOOK_EVERY_SECONDS, LOOK_SECONDS_A_JOB = 0.1, 0.002
VISIT_EVERY_SECONDS = 1.0  # folders that others work in
FULL_SECONDS, FULL_SECONDS_AT_MOST = 60.0, 600.0  # an engine that takes no more is left alone so long
REFUSALS = 3  # in a row, with nothing at work, and it is not asked again


class View(Protocol):
    """What the driver tells the reader."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def show(self, runs: Sequence[Tracked]) -> None:
        """How things are; called often."""


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
        self._next_place, self._pause, self._refusals, self._said = 0.0, FULL_SECONDS, 0, ""

    def at_work(self) -> list[tuple[Tracked, Placed]]:
        return [(run, run.placed) for run in self.runs if run.placed is not None]

    def rest(self) -> None:
        """Wait a little; the longer, the more there is to look at."""
        time.sleep(LOOK_EVERY_SECONDS + LOOK_SECONDS_A_JOB * len(self.at_work()))

    def place(self) -> None:
        """Place as many as the engine takes; what was in vain comes after what was not tried yet."""
        if time.monotonic() < self._next_place:
            return
        waiting = sorted((run for run in self.runs if run.standing == "to do"), key=lambda run: run.vain)
        room = self.engine.workers - len(self.at_work()) if self.engine.workers else len(waiting)
        for run in waiting[: max(0, room)]:
            try:
                run.note_beginning()
                heartbeat.forget(run.job.path)
                worker_process.forget_stop(run.job.path)
                run.placed, run.standing, run.words = self.engine.place(run.job), "placed", ""
            except NotTaken as refusal:
                self._leave_alone(str(refusal))
                return
            except OSError as error:  # its folder, for example; the others can be placed all the same
                self._take_not_placed(run, error)
            else:
                self._pause, self._refusals = FULL_SECONDS, 0

    def collect(self, *, stopping: bool = False) -> None:
        """See who has ended, and what follows."""
        for run, placed in self.at_work():
            if (end := placed.ended()) is None:
                continue
            self._next_place = 0.0  # there may be room now
            run.placed, found = None, read_state(run.job.path)
            moved = mark(run.job.path) != run.began_at
            step = after(end, found, moved=moved, vain=run.vain, retries=self.retries)
            if stopping and step.step != "finished":
                run.standing = "to do"
                if end.code == FAILED:  # it could not save, for example
                    self.view.say(f"{run.job.label}: {reason(run.job, end, run.log_bytes)}")
            else:
                self._take(run, step, found, end)
                if end.code == NO_DATA:
                    self._leave_out(run)

    def visit(self) -> None:
        """Look again at what others worked on."""
        if time.monotonic() < self._next_visit:
            return
        self._next_visit = time.monotonic() + VISIT_EVERY_SECONDS
        for run in self.runs:
            if run.standing == "elsewhere" and (found := read_state(run.job.path)).state != "in use":
                run.standing, run.words = "to do", ""
                if found.state == "finished":
                    self._take(run, Next("finished", 0), found)

    def _take(self, run: Tracked, step: Next, found: RunState, end: End | None = None) -> None:
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
            say(f"{label}: {reason(run.job, end, run.log_bytes)}; to go on from its last checkpoint ({vain})")
        else:
            run.standing, run.words = step.step, reason(run.job, end, run.log_bytes)
            tried = f"; given up, {step.vain} times in a row in vain" if step.vain > 1 else ""
            say(f"{label}: failed: {run.words}{tried}")

    def _leave_alone(self, why: str) -> None:
        """The engine is full: wait, the longer the more often; give up where nothing will make room."""
        left = [run for run in self.runs if run.standing == "to do"]
        self._refusals = 0 if self.at_work() else self._refusals + 1
        if self._refusals >= REFUSALS:
            for run in left:
                run.standing, run.words = "failed", why
            self.view.say(f"{counted(left)} failed: {self.engine.words} took none, {REFUSALS} times: {why}")
            return
        if why != self._said:
            self._said = why
            self.view.say(f"{self.engine.words} takes no more for now: {why}; waiting with {counted(left)}")
        self._next_place = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, FULL_SECONDS_AT_MOST)

    def _take_not_placed(self, run: Tracked, error: OSError) -> None:
        """An attempt in vain: no worker could be begun."""
        run.vain += 1
        words = f"no worker could be begun: {error}"
        if run.vain > self.retries:
            run.standing, run.words = "failed", words
            self.view.say(f"{run.job.label}: failed: {words}")

    def _leave_out(self, refused: Tracked) -> None:
        """Do not begin what needs the same data as a run that lacks it."""
        same = [r for r in self.runs if r.standing == "to do" and r.needs == refused.needs]
        for run in same:
            run.standing, run.words = "refused", refused.words
        if same:
            self.view.say(f"{counted(same)} of {refused.job.experiment.name} not begun, for the same reason")
