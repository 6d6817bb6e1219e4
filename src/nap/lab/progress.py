"""The progress of runs: live bars in a terminal, elsewhere a plain line every ten seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress

if TYPE_CHECKING:
    from nap.lab.runner.work import Work

WINDOW_SECONDS = 30.0  # over which the speed is measured
LINE_EVERY_SECONDS = 10.0

Clock = Callable[[], float]


class Speed:
    """The recent speed of a run, without what it did in earlier sessions.

    >>> ticks = iter([0.0, 2.0])
    >>> speed = Speed(done=100, clock=lambda: next(ticks))
    >>> speed.measure(110)
    5.0
    """

    def __init__(self, done: int, clock: Clock = time.monotonic):
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), done)])

    def measure(self, done: int) -> float:
        """Units per second in the window, given the number done now."""
        now = self._clock()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= WINDOW_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        return (done - before) / (now - since) if now > since else 0.0


def describe(work: Work, units_per_second: float) -> str:
    """Units done, model updates per second and time left."""
    parts = [f"{work.done:,}/{work.total:,} {work.unit}"]
    if units_per_second > 0:
        parts.append(f"{units_per_second * work.steps_per_unit:,.0f} model-steps/s")
        parts.append(f"{duration((work.total - work.done) / units_per_second)} left")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """
    >>> duration(75), duration(3605.4)
    ('1:15', '1:00:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Display(Protocol):
    """Where a loop over runs reports its progress."""

    def say(self, text: str) -> None:
        """Print a line."""

    def begin(self, run: str) -> None:
        """A run is being prepared."""

    def tick(self, work: Work) -> None:
        """The run is ready, or did another unit."""

    def end(self) -> None:
        """The run ended, or was skipped."""


def print_line(console: Console, text: str) -> None:
    """Print text as it is: no markup, no colours, no wrapping."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class Lines:
    """Progress in a log file: at most one line every ten seconds."""

    def __init__(self, console: Console, runs: int, clock: Clock = time.monotonic):
        self._console, self._runs, self._clock = console, runs, clock
        self._ended = 0
        self._speed: Speed | None = None

    def say(self, text: str) -> None:
        print_line(self._console, text)

    def begin(self, run: str) -> None:
        self._run, self._speed, self._last = run, None, self._clock()

    def tick(self, work: Work) -> None:
        self._speed = self._speed or Speed(work.done, self._clock)
        rate = self._speed.measure(work.done)
        if self._clock() - self._last >= LINE_EVERY_SECONDS:
            self._last = self._clock()
            self.say(f"{self._run} ({self._ended + 1} of {self._runs})  {describe(work, rate)}")

    def end(self) -> None:
        self._ended += 1


class Bars:
    """Progress in a terminal: one bar for all runs, one for the current run."""

    def __init__(self, rich: RichProgress, title: str, runs: int):
        self._rich, self._runs, self._ended = rich, runs, 0
        self._all = rich.add_task(title, total=runs, words=f"0/{runs} runs")
        self._task: TaskID | None = None
        self._speed: Speed | None = None

    def say(self, text: str) -> None:
        print_line(self._rich.console, text)

    def begin(self, run: str) -> None:
        self._task, self._speed = self._rich.add_task(run, total=None, words="preparing"), None

    def tick(self, work: Work) -> None:
        assert self._task is not None, "begin a run first"
        self._speed = self._speed or Speed(work.done)
        words = describe(work, self._speed.measure(work.done))
        self._rich.update(self._task, total=work.total, completed=work.done, words=words)

    def end(self) -> None:
        self._ended += 1
        self._rich.update(self._all, completed=self._ended, words=f"{self._ended}/{self._runs} runs")
        if self._task is not None:
            self._rich.remove_task(self._task)
            self._task = None


def bars(console: Console) -> RichProgress:
    """Progress bars with a title and the text `words`."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[words]}"))
    return RichProgress(*columns, console=console, transient=True)


@contextmanager
def display(title: str, runs: int, console: Console | None = None) -> Iterator[Display]:
    """Bars in a terminal, lines elsewhere."""
    console = console or Console()
    if not console.is_terminal:
        yield Lines(console, runs)
        return
    with bars(console) as rich:
        yield Bars(rich, title, runs)


@contextmanager
def transfer(
    console: Console | None = None,
) -> Iterator[tuple[Callable[[str], None], Callable[[int, int], None]]]:
    """Two functions for a download: say(message) and progress(bytes done, total bytes)."""
    console = console or Console(stderr=True)
    columns = (BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn())
    with RichProgress(*columns, console=console, transient=True, disable=not console.is_terminal) as rich:
        task = rich.add_task("", total=None)
        yield (
            lambda text: print_line(console, text),
            lambda done, total: rich.update(task, completed=done, total=total or None),
        )
