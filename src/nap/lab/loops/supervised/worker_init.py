"""Workers and what they inherit: signals that ask a run to stop, and its garbage; neither is for them.

Ctrl-C, or a batch system that ends a job, signals every process of the group. The run saves before it stops,
and needs its workers until then. They end when the run does, without a word.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.util import Finalize
from types import FrameType

from nap.lab.runner.signals import SIGNALS

_LAST = -1000  # after all that multiprocessing itself does at the end of a process


@contextmanager
def unsettled() -> Iterator[None]:
    """Workers that are started inside have these signals held back until they call `settle`.

    So do we, for that moment: none is lost.
    """
    resource_tracker.ensure_running()  # which multiprocessing starts with the first worker, and lets them in
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def settle(worker: int) -> None:
    """Called in a worker: it stays through such signals, but for a second SIGTERM.

    That one comes from a run that is over, and waits for a worker that hangs. What it inherited it never
    collects: an object of a library whose threads did not come along may abort the process when it ends.
    """
    gc.freeze()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _Patience(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    Finalize(None, _leave, exitpriority=_LAST)


def _leave() -> None:
    """End this process here, unless an error is on its way out.

    A worker that is told to end may have a batch half sent. The interpreter would end the thread that sends
    it in the midst of C++, which aborts the process, and the run would report that as a worker's death.
    """
    if sys.exception() is None:
        for stream in (sys.stdout, sys.stderr):
            print(end="", file=stream, flush=True)
        os._exit(0)


class _Patience:
    """A handler that bears so many signals."""

    def __init__(self, left: int):
        self._left = left

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._left -= 1
        if self._left < 0:
            os._exit(1)
