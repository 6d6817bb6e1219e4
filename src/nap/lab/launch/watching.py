"""One view of all runs: live bars in a terminal, elsewhere a plain line every ten seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from nap.lab.launch import heartbeat
from nap.lab.launch.drive import View
from nap.lab.launch.heartbeat import Heartbeat
from nap.lab.launch.retries import Tracked
from nap.lab.progress import LINE_EVERY_SECONDS, Clock, Pace, duration

LOOK_EVERY_SECONDS = 0.5
LINES_KEPT_FREE = 6  # of a terminal's height
UNDER_WAY = ("placed", "elsewhere")
FINE = 1_000_000  # a run counts as a million parts, so that its pace shows within seconds


class Outlook:
    """How far all runs are, and how long they will take, from what their folders tell.

    `waiting` is what a run is doing that was placed and has not told anything: "starting" or "queued".
    """

    def __init__(self, waiting: str, clock: Clock = time.monotonic):
        self.waiting, self._clock = waiting, clock
        self.seconds_left: float | None = None
        self._told: dict[str, Heartbeat | None] = {}  # by label: what a run tells now
        self._known: dict[str, float] = {}  # by label: how much of it was done when it told that last
        self._paces: dict[str, Pace] = {}
        self._left: dict[str, float] = {}  # seconds that a run needs yet
        self._overall: Pace | None = None

    def look(self, runs: Sequence[Tracked]) -> None:
        """Read what the workers tell."""
        first, self._left = self._overall is None, {}
        for run in runs:
            label, under_way = run.job.label, run.standing in UNDER_WAY
            told = heartbeat.read(run.job.path) if under_way or (first and run.standing == "to do") else None
            self._told[label] = told if under_way else None
            if told is None:
                self._paces.pop(label, None)
                continue
            self._known[label] = told.share
            rate = self._paces.setdefault(label, Pace(told.done, self._clock)).measure(told.done)
            if rate > 0:
                self._left[label] = (told.total - told.done) / rate
        done = round(FINE * sum(self.share(run) for run in runs))
        self._overall = self._overall or Pace(done, self._clock)
        rate = self._overall.measure(done)
        open_ = sum(run.standing not in ("failed", "refused") for run in runs) * FINE - done
        self.seconds_left = max([open_ / rate, *self._left.values()]) if rate > 0 else None

    def share(self, run: Tracked) -> float:
        """How much of a run is done, from 0 to 1."""
        if run.standing == "finished":
            return 1.0
        return 0.0 if run.standing in ("failed", "refused") else self._known.get(run.job.label, 0.0)

    def under_way(self, runs: Sequence[Tracked]) -> list[Tracked]:
        """Those to show by themselves: first the ones that tell something."""
        found = [run for run in runs if run.standing in UNDER_WAY]
        return sorted(found, key=lambda run: self._told.get(run.job.label) is None)

    def one(self, run: Tracked) -> str:
        """A run under way, in words."""
        told = self._told.get(run.job.label)
        parts = [f"{told.done:,}/{told.total:,} {told.unit}" if told else self.waiting]
        if run.standing == "elsewhere":
            parts = [*parts[: told is not None], run.words]
        if run.job.label in self._left:
            parts.append(f"{duration(self._left[run.job.label])} left")
        return "  ".join(parts)

    def all(self, runs: Sequence[Tracked]) -> str:
        """All runs in words."""
        count = Counter(self._word(run) for run in runs)
        parts = [f"{count.pop('finished', 0)}/{len(runs)} runs finished"]
        order = ("at work", self.waiting, "in use elsewhere", "to do", "failed")
        parts += [f"{count[word]} {word}" for word in order if count[word]]
        return ", ".join(parts) + (f"  {duration(self.seconds_left)} left" if self.seconds_left else "")

    def _word(self, run: Tracked) -> str:
        if run.standing == "placed":
            return "at work" if self._told.get(run.job.label) else self.waiting
        return {"elsewhere": "in use elsewhere", "refused": "failed"}.get(run.standing, run.standing)


class Lines:
    """Progress in a log file: a line at most every ten seconds."""

    def __init__(self, console: Console, waiting: str = "starting", clock: Clock = time.monotonic):
        self._console, self._clock, self._outlook = console, clock, Outlook(waiting, clock)
        self._next_look, self._next_line = 0.0, clock() + LINE_EVERY_SECONDS

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, runs: Sequence[Tracked]) -> None:
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + _interval(runs)
        self._outlook.look(runs)
        if now >= self._next_line:
            self._next_line = now + LINE_EVERY_SECONDS
            self.say(self._outlook.all(runs))


class Bars:
    """Progress in a terminal: a bar for all runs, and one for each that is under way and has room."""

    def __init__(self, rich: RichProgress, title: str, waiting: str = "starting"):
        self._rich, self._outlook, self._next_look = rich, Outlook(waiting), 0.0
        self._all = rich.add_task(title, total=None, words="")
        self._bars: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        self._rich.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, runs: Sequence[Tracked]) -> None:
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _interval(runs)
        outlook = self._outlook
        outlook.look(runs)
        done = sum(outlook.share(run) for run in runs)
        self._rich.update(self._all, total=len(runs), completed=done, words=outlook.all(runs))
        room = max(1, self._rich.console.height - LINES_KEPT_FREE)
        shown = {run.job.label: run for run in outlook.under_way(runs)[:room]}
        for label in set(self._bars) - set(shown):
            self._rich.remove_task(self._bars.pop(label))
        for label, run in shown.items():
            if label not in self._bars:
                self._bars[label] = self._rich.add_task(label, total=1.0, words="")
            self._rich.update(self._bars[label], completed=outlook.share(run), words=outlook.one(run))


def _interval(runs: Sequence[Tracked]) -> float:
    """Seconds between two looks: not so many files a second that a shared disk would feel it."""
    return LOOK_EVERY_SECONDS * max(1.0, sum(run.standing in UNDER_WAY for run in runs) / 50)


@contextmanager
def view(title: str, waiting: str = "starting", console: Console | None = None) -> Iterator[View]:
    """Bars where someone is watching, lines where nobody is."""
    console = console or Console()
    if not console.is_terminal:
        yield Lines(console, waiting)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[words]}"))
    with RichProgress(*columns, console=console, transient=True) as rich:
        yield Bars(rich, title, waiting)
