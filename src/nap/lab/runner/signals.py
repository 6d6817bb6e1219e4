"""Requests to stop a run, by a signal or a time limit: it finishes the current unit and saves first."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT)
TIME_LIMIT = "the time limit"


class StopRequest:
    """Whether a stop was requested, and by what: the name of a signal, or the time limit."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._interrupts = clock, 0
        self._ends_at = math.inf if seconds is None else clock() + seconds
        self._signal: str | None = None

    @property
    def signal(self) -> str | None:
        """What requests a stop; None while nothing does.

        >>> now = [0.0]
        >>> stop = StopRequest(60.0, clock=lambda: now[0])
        >>> stop.signal
        >>> now[0] = 61.0
        >>> stop.signal
        'the time limit'
        """
        if self._signal is None and self._clock() >= self._ends_at:
            self._signal = TIME_LIMIT
        return self._signal

    @signal.setter
    def signal(self, name: str) -> None:
        self._signal = name

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler; a second Ctrl-C interrupts at once."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt
        self._signal = self._signal or signal.Signals(number).name


@contextmanager
def stop_requests(seconds: float | None = None) -> Iterator[StopRequest]:
    """A `StopRequest` that signals set, and `seconds` if given; earlier handlers are restored at the end.

    Python delivers signals to the main thread only; in other threads signals set nothing.

    >>> with stop_requests() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.signal
    'SIGTERM'
    """
    stop = StopRequest(seconds)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # under nohup SIGHUP is ignored already, and stays ignored
    caught = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop.handle) for number in caught}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
