"""Data-loading workers ignore the signals that ask their run to stop.

Ctrl-C, or a batch system that ends a job, signals every process of the group. The run saves before it stops,
and needs its workers until then. They end when the run does, silently.
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

_LAST = -1000  # after multiprocessing's own finalizers


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals, here and in workers started inside, until those call `worker_init`; none is lost."""
    resource_tracker.ensure_running()  # which would be started with the first worker, and unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def worker_init(worker: int) -> None:
    """Called in a worker: it ignores these signals, but for a second SIGTERM.

    That one comes from a run that is over and waits for a worker that hangs. Inherited objects are never
    collected: one of a library whose threads were not inherited may abort the process when it ends.
    """
    gc.freeze()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ExitAfter(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    Finalize(None, _leave, exitpriority=_LAST)


def _leave() -> None:
    """End this process here, unless an error is propagating.

    A worker that is told to end may have a batch half sent. The interpreter would end the sending thread in
    the midst of C++, which aborts the process, and the run would report that as a worker's death.
    """
    if sys.exception() is None:
        for stream in (sys.stdout, sys.stderr):
            print(end="", file=stream, flush=True)
        os._exit(0)


class _ExitAfter:
    """A signal handler that ignores so many signals, then exits."""

    def __init__(self, left: int):
        self._left = left

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._left -= 1
        if self._left < 0:
            os._exit(1)
