"""What asks a run to stop, a signal or a time limit: the unit under way is finished and saved first."""

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
    """Whether a stop has been asked for, and by what: the name of a signal, or the time limit."""

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._interrupts = clock, 0
        self._ends_at = math.inf if seconds is None else clock() + seconds
        self._signal: str | None = None

    @property
    def signal(self) -> str | None:
        """What asks for a stop; None while nothing does.

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
        """The handler. A second Ctrl-C does not wait any more."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt
        self._signal = self._signal or signal.Signals(number).name


@contextmanager
def stop_requests(seconds: float | None = None) -> Iterator[StopRequest]:
    """A `StopRequest` to look at between units; the handlers from before are put back at the end.

    After `seconds`, if given, it asks for a stop by itself.

    Python delivers signals to the main thread alone; in another thread none is ever asked for.

    >>> with stop_requests() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.signal
    'SIGTERM'
    """
    stop = StopRequest(seconds)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # a hang-up is ignored where nohup said so: then it is nobody's wish to stop
    heard = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, stop.handle) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
