"""Data-loading workers: the signals that they ignore, the memory that they share, and their errors explained.

Ctrl-C, or a batch system that ends a job, signals every process of the group. The run saves before it stops,
and needs its workers until then. They end when the run does, silently. Batches come through /dev/shm: where
one finds no room there, or the system ends a worker, torch does not name the way out.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from multiprocessing import resource_tracker
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType

from torch import Tensor

from nap.lab.machine import sharers
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


SHARED = Path("/dev/shm")
PREFETCH = 2  # batches that each worker has ready
HELD_BY_RUN = 2  # batches that the run holds: the one it learns from, and the next
TIMEOUT_SECONDS = 600.0  # after which a batch counts as lost
_RESUME = "the same command goes on where it was saved last"


class OutOfSharedMemory(RuntimeError):
    """A worker's batch did not fit into shared memory; torch's message."""


class WorkerLost(RuntimeError):
    """A worker process, or a batch of it, is lost; the message says why, and the way out."""


def check_room(workers: int, batch_bytes: int) -> None:
    """Refuse to start where /dev/shm cannot hold the batches of so many workers.

    Where several runs share this machine, each has its share.
    """
    if not workers or not SHARED.is_dir():
        return
    there = shutil.disk_usage(SHARED)
    needed = (workers * PREFETCH + HELD_BY_RUN) * batch_bytes
    room = min(there.free, there.total // sharers())
    if not there.total or needed <= room:  # a total of 0: there is no limit
        return
    size = ceil(max(there.used + needed, needed * sharers()) / 2**20)
    fit = max(0, (room // batch_bytes - HELD_BY_RUN) // PREFETCH)
    raise ValueError(
        f"{workers} process{'es' * (workers > 1)} to decode images (NAP_WORKERS) would need "
        f"{_megabytes(needed)} of {SHARED} for batches, and there are {_megabytes(room)}; give it more "
        f"(docker run --shm-size {size}m), or set NAP_WORKERS={fit}"
        + ("" if fit else ", which needs none: the run decodes its images itself")
    )


def share_(*batch: Tensor) -> None:
    """Move a worker's batch to shared memory; the thread that sends it would do so too, but hide errors."""
    try:
        for part in batch:
            part.share_memory_()
    except RuntimeError as error:
        raise OutOfSharedMemory(str(error)) from None


@contextmanager
def worker_errors_explained() -> Iterator[None]:
    """Turn errors that mean a lost worker or batch into `WorkerLost`.

    Torch raises them wherever the run happens to be, not only where it waits for a batch.
    """
    try:
        yield
    except OutOfSharedMemory as error:
        raise WorkerLost(_out_of_memory(str(error))) from error
    except RuntimeError as error:
        if (words := _explained(" ".join(str(error).split()))) is None:
            raise
        raise WorkerLost(words) from error


def _explained(said: str) -> str | None:
    """Our words for torch's message; None for messages about something else."""
    if said.startswith("DataLoader worker") and "shared memory" in said:
        return _out_of_memory(said)
    if said.startswith("DataLoader timed out"):
        return (
            f"no batch of images came for {TIMEOUT_SECONDS:g} seconds: its files cannot be read, or it was "
            "lost on its way, perhaps with the thread that moves batches to the GPU; see to the disk that "
            f"they lie on, or set NAP_WORKERS=0; {_RESUME}"
        )
    if said.startswith("DataLoader worker"):
        return (
            f"a process that decodes images was ended ({said.rstrip('. ')}), perhaps for want of memory; "
            f"set fewer NAP_WORKERS, and {_RESUME}"
        )
    return None


def _out_of_memory(said: str) -> str:
    return (
        f"a batch of images found no room in {SHARED} ({' '.join(said.split())}); make room there, give it "
        f"more (docker run --shm-size), or set fewer NAP_WORKERS, of which 0 need none; {_RESUME}"
    )


def _megabytes(count: int) -> str:
    """
    >>> _megabytes(67_108_864), _megabytes(1_200_000)
    ('67 MB', '1.2 MB')
    """
    return f"{count / 1e6:,.0f} MB" if count >= 1e7 else f"{count / 1e6:.2g} MB"
