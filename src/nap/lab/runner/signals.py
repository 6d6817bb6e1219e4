"""Signals that ask a run to stop: the unit under way is finished and saved first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Whether, and by which signal, a stop has been asked for."""

    def __init__(self) -> None:
        self.signal: str | None = None
        self._interrupts = 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler. A second Ctrl-C does not wait any more."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number).name


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """A `StopRequest` to look at between units; the handlers from before are put back at the end.

    Python delivers signals to the main thread alone; in another thread none is ever asked for.

    >>> with stop_requests() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.signal
    'SIGTERM'
    """
    stop = StopRequest()
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
