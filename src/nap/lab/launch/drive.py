"""The driver of a sweep: submits jobs to an engine, watches their folders, and retries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from nap.lab.launch import heartbeat, worker_process
from nap.lab.launch.engine import Engine, EngineFull, Exit, Handle
from nap.lab.launch.retries import (
    FAILED,
    NO_DATA,
    OPEN,
    Decision,
    Tracked,
    count_runs,
    decide,
    exit_reason,
)
from nap.lab.launch.run_state import RunState, checkpoint_stamp, read_state
from nap.lab.progress import duration
from nap.lab.runner.signals import StopRequest

POLL_SECONDS, POLL_SECONDS_PER_JOB = 0.1, 0.002
ELSEWHERE_SECONDS = 1.0  # between two looks at runs of other processes
FULL_SECONDS, MAX_FULL_SECONDS = 60.0, 600.0  # wait before the next submission to a full engine
MAX_REFUSALS = 3  # in a row with nothing running, then give up


class View(Protocol):
    """Where the driver prints."""

    def say(self, text: str) -> None:
        """Print a line."""

    def show(self, runs: Sequence[Tracked]) -> None:
        """Update the progress; called often."""


def drive(
    runs: Sequence[Tracked], engine: Engine, view: View, *, retries: int, stop: StopRequest | None = None
) -> None:
    """Bring every run to an end; `runs` are updated in place.

    After a stop request nothing is submitted, and running workers save and exit. A second Ctrl-C kills
    them; they resume from their last checkpoint another time.
    """
    driver = _Driver(runs, engine, view, retries)
    stop = stop or StopRequest()
    try:
        while any(run.status in OPEN for run in runs) and stop.signal is None:
            driver.submit()
            driver.collect()
            driver.check_elsewhere()
            view.show(runs)
            driver.sleep()
        if stop.signal is not None and driver.running():
            view.say(f"{stop.signal}: waiting for {len(driver.running())} runs to save")
        for _, handle in driver.running():
            handle.stop()
        while driver.running():
            driver.collect(stopping=True)
            view.show(runs)
            driver.sleep()
    except KeyboardInterrupt:  # a second Ctrl-C
        for _, handle in driver.running():
            handle.kill()
        raise


class _Driver:
    def __init__(self, runs: Sequence[Tracked], engine: Engine, view: View, retries: int):
        self.runs, self.engine, self.view, self.retries = runs, engine, view, retries
        self._next_elsewhere = self._next_submit = 0.0
        self._full_seconds, self._refusals, self._last_refusal = FULL_SECONDS, 0, ""

    def running(self) -> list[tuple[Tracked, Handle]]:
        return [(run, run.handle) for run in self.runs if run.handle is not None]

    def sleep(self) -> None:
        time.sleep(POLL_SECONDS + POLL_SECONDS_PER_JOB * len(self.running()))

    def submit(self) -> None:
        """Submit as many jobs as the engine has room for, those with fewer failed attempts first."""
        if time.monotonic() < self._next_submit:
            return
        waiting = sorted((run for run in self.runs if run.status == "to do"), key=lambda run: run.attempts)
        room = self.engine.workers - len(self.running()) if self.engine.workers else len(waiting)
        for run in waiting[: max(0, room)]:
            try:
                run.remember()
                heartbeat.clear(run.job.path)
                worker_process.withdraw_stop(run.job.path)
                run.handle, run.status, run.detail = self.engine.submit(run.job), "submitted", ""
            except EngineFull as refusal:
                self._wait_for_room(str(refusal))
                return
            except OSError as error:  # of its folder, for example; other jobs can still be submitted
                run.attempts += 1
                if run.attempts > self.retries:
                    run.status, run.detail = "failed", f"no worker could be started: {error}"
                    self.view.say(f"{run.job.label}: failed: {run.detail}")
            else:
                self._full_seconds, self._refusals = FULL_SECONDS, 0

    def collect(self, *, stopping: bool = False) -> None:
        """Handle workers that have exited."""
        for run, handle in self.running():
            if (end := handle.poll()) is None:
                continue
            self._next_submit = 0.0  # there may be room now
            run.handle, state = None, read_state(run.job.path)
            progressed = checkpoint_stamp(run.job.path) != run.stamp
            decision = decide(end, state, progressed=progressed, attempts=run.attempts, retries=self.retries)
            if stopping and decision.step != "finished":
                run.status = "to do"
                if end.code == FAILED:  # it could not save, for example
                    self.view.say(f"{run.job.label}: {exit_reason(run.job, end, run.log_bytes)}")
            else:
                self._apply(run, decision, state, end)
                if end.code == NO_DATA:
                    self._refuse_same_data(run)

    def check_elsewhere(self) -> None:
        """Look again at runs that other processes worked on."""
        if time.monotonic() < self._next_elsewhere:
            return
        self._next_elsewhere = time.monotonic() + ELSEWHERE_SECONDS
        for run in self.runs:
            if run.status == "elsewhere" and (state := read_state(run.job.path)).state != "in use":
                run.status, run.detail = "to do", ""
                if state.state == "finished":
                    self._apply(run, Decision("finished", 0), state)

    def _apply(self, run: Tracked, decision: Decision, state: RunState, end: Exit | None = None) -> None:
        say, label, run.attempts = self.view.say, run.job.label, decision.attempts
        if decision.step == "finished":
            run.status = "finished"
            say(f"{label}: finished, {duration(state.seconds)} of work")
            return
        assert end is not None
        if decision.step == "elsewhere":
            run.status = "elsewhere"
            run.detail = state.detail if state.state == "in use" else "in use a moment ago"
            say(f"{label}: {run.detail}; waiting for that")
            return
        reason, tries = exit_reason(run.job, end, run.log_bytes), decision.attempts
        if decision.step == "again":
            run.status = "to do"
            count = f"{tries} of {self.retries + 1} attempts without a checkpoint" if tries else "it saved"
            say(f"{label}: {reason}; to resume from its last checkpoint ({count})")
        else:
            run.status, run.detail = decision.step, reason
            given_up = f"; given up after {tries} attempts without a checkpoint" if tries > 1 else ""
            say(f"{label}: failed: {reason}{given_up}")

    def _wait_for_room(self, reason: str) -> None:
        """Wait before the next submission, each time longer; give up if nothing is running to make room."""
        waiting = [run for run in self.runs if run.status == "to do"]
        engine = self.engine.description
        self._refusals = 0 if self.running() else self._refusals + 1
        if self._refusals >= MAX_REFUSALS:
            for run in waiting:
                run.status, run.detail = "failed", reason
            self.view.say(f"{count_runs(waiting)} failed: {engine} took none, {MAX_REFUSALS} times: {reason}")
            return
        if reason != self._last_refusal:
            self._last_refusal = reason
            self.view.say(f"{engine} takes no more for now: {reason}; waiting with {count_runs(waiting)}")
        self._next_submit = time.monotonic() + self._full_seconds
        self._full_seconds = min(2 * self._full_seconds, MAX_FULL_SECONDS)

    def _refuse_same_data(self, refused: Tracked) -> None:
        """Do not start runs that need the data that this run lacks."""
        same = [run for run in self.runs if run.status == "to do" and run.data == refused.data]
        for run in same:
            run.status, run.detail = "refused", refused.detail
        if same:
            name = refused.job.experiment.name
            self.view.say(f"{count_runs(same)} of {name} not begun, for the same reason")
