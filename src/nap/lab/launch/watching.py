"""The progress of a sweep: live bars in a terminal, elsewhere a plain line every ten seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import TaskID

from nap.lab.launch import heartbeat
from nap.lab.launch.drive import View
from nap.lab.launch.heartbeat import Heartbeat
from nap.lab.launch.retries import Tracked
from nap.lab.progress import LINE_EVERY_SECONDS, Clock, Speed, bars, duration, print_line

READ_EVERY_SECONDS = 0.5
RESERVED_LINES = 6  # of a terminal's height
RUNNING = ("submitted", "elsewhere")
UNITS_PER_RUN = 1_000_000  # so that the speed of long runs shows within seconds


class SweepProgress:
    """Progress and time left of all runs, from their heartbeats.

    `waiting` describes a run that was submitted and has no heartbeat yet: "starting" or "queued".
    """

    def __init__(self, waiting: str, clock: Clock = time.monotonic):
        self.waiting, self._clock = waiting, clock
        self.seconds_left: float | None = None
        self._beats: dict[str, Heartbeat | None] = {}  # by label, of runs that are running
        self._shares: dict[str, float] = {}  # by label, the share that was done at the last heartbeat
        self._speeds: dict[str, Speed] = {}
        self._left: dict[str, float] = {}  # by label, in seconds
        self._overall: Speed | None = None

    def update(self, runs: Sequence[Tracked]) -> None:
        """Read the heartbeats."""
        first, self._left = self._overall is None, {}
        for run in runs:
            label, running = run.job.label, run.status in RUNNING
            beat = heartbeat.read(run.job.path) if running or (first and run.status == "to do") else None
            self._beats[label] = beat if running else None
            if beat is None:
                self._speeds.pop(label, None)
                continue
            self._shares[label] = beat.share
            rate = self._speeds.setdefault(label, Speed(beat.done, self._clock)).measure(beat.done)
            if rate > 0:
                self._left[label] = (beat.total - beat.done) / rate
        done = round(UNITS_PER_RUN * sum(self.share(run) for run in runs))
        self._overall = self._overall or Speed(done, self._clock)
        rate = self._overall.measure(done)
        left = sum(run.status not in ("failed", "refused") for run in runs) * UNITS_PER_RUN - done
        self.seconds_left = max([left / rate, *self._left.values()]) if rate > 0 else None

    def share(self, run: Tracked) -> float:
        """The share of a run that is done, from 0 to 1."""
        if run.status == "finished":
            return 1.0
        return 0.0 if run.status in ("failed", "refused") else self._shares.get(run.job.label, 0.0)

    def running(self, runs: Sequence[Tracked]) -> list[Tracked]:
        """The runs that are running, those with a heartbeat first."""
        running = [run for run in runs if run.status in RUNNING]
        return sorted(running, key=lambda run: self._beats.get(run.job.label) is None)

    def describe(self, run: Tracked) -> str:
        """The progress of one run that is running."""
        beat = self._beats.get(run.job.label)
        parts = [f"{beat.done:,}/{beat.total:,} {beat.unit}" if beat else self.waiting]
        if run.status == "elsewhere":
            parts = [*parts[: beat is not None], run.detail]
        if run.job.label in self._left:
            parts.append(f"{duration(self._left[run.job.label])} left")
        return "  ".join(parts)

    def summary(self, runs: Sequence[Tracked]) -> str:
        """The progress of all runs."""
        count = Counter(self._state(run) for run in runs)
        parts = [f"{count.pop('finished', 0)}/{len(runs)} runs finished"]
        order = ("running", self.waiting, "in use elsewhere", "to do", "failed")
        parts += [f"{count[state]} {state}" for state in order if count[state]]
        return ", ".join(parts) + (f"  {duration(self.seconds_left)} left" if self.seconds_left else "")

    def _state(self, run: Tracked) -> str:
        if run.status == "submitted":
            return "running" if self._beats.get(run.job.label) else self.waiting
        return {"elsewhere": "in use elsewhere", "refused": "failed"}.get(run.status, run.status)


class Lines:
    """Progress in a log file: at most one line every ten seconds."""

    def __init__(self, console: Console, waiting: str = "starting", clock: Clock = time.monotonic):
        self._console, self._clock, self._progress = console, clock, SweepProgress(waiting, clock)
        self._next_read, self._next_line = 0.0, clock() + LINE_EVERY_SECONDS

    def say(self, text: str) -> None:
        print_line(self._console, text)

    def show(self, runs: Sequence[Tracked]) -> None:
        now = self._clock()
        if now < self._next_read:
            return
        self._next_read = now + _interval(runs)
        self._progress.update(runs)
        if now >= self._next_line:
            self._next_line = now + LINE_EVERY_SECONDS
            self.say(self._progress.summary(runs))


class Bars:
    """Progress in a terminal: a bar for all runs, and one for each running run that has room."""

    def __init__(self, rich: RichProgress, title: str, waiting: str = "starting"):
        self._rich, self._progress, self._next_read = rich, SweepProgress(waiting), 0.0
        self._all = rich.add_task(title, total=None, words="")
        self._bars: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        print_line(self._rich.console, text)

    def show(self, runs: Sequence[Tracked]) -> None:
        if time.monotonic() < self._next_read:
            return
        self._next_read = time.monotonic() + _interval(runs)
        progress = self._progress
        progress.update(runs)
        done = sum(progress.share(run) for run in runs)
        self._rich.update(self._all, total=len(runs), completed=done, words=progress.summary(runs))
        room = max(1, self._rich.console.height - RESERVED_LINES)
        shown = {run.job.label: run for run in progress.running(runs)[:room]}
        for label in set(self._bars) - set(shown):
            self._rich.remove_task(self._bars.pop(label))
        for label, run in shown.items():
            if label not in self._bars:
                self._bars[label] = self._rich.add_task(label, total=1.0, words="")
            self._rich.update(self._bars[label], completed=progress.share(run), words=progress.describe(run))


def _interval(runs: Sequence[Tracked]) -> float:
    """Seconds between two readings: longer for many runs, to spare a shared disk."""
    return READ_EVERY_SECONDS * max(1.0, sum(run.status in RUNNING for run in runs) / 50)


@contextmanager
def view(title: str, waiting: str = "starting", console: Console | None = None) -> Iterator[View]:
    """Bars in a terminal, lines elsewhere."""
    console = console or Console()
    if not console.is_terminal:
        yield Lines(console, waiting)
        return
    with bars(console) as rich:
        yield Bars(rich, title, waiting)
