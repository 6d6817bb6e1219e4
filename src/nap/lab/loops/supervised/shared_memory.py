"""How batches come from the processes that decode them: through /dev/shm, and what may go wrong on the way.

Of a batch that finds no room there, or of a process that the system ends, torch says neither the way out nor,
at times, anything at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path

from torch import Tensor

from nap.lab.runner.machine import sharers

SHARED = Path("/dev/shm")
PREFETCH = 2  # batches that each worker has ready
IN_HAND = 2  # batches that the run has: the one it learns from, and the next when that comes
PATIENCE_SECONDS = 600.0  # that a run waits for a batch; it has been lost then
_GO_ON = "the same command goes on where it was saved last"


class NoRoom(RuntimeError):
    """A worker's batch found no room in shared memory; in torch's words."""


class WorkerLost(RuntimeError):
    """A process that decodes images is gone, or what it sent; says why, and the way out."""


def check_room(workers: int, batch_bytes: int) -> None:
    """Refuse to start where /dev/shm cannot hold the batches of so many workers.

    Where several runs share this machine, each has its part.
    """
    if not workers or not SHARED.is_dir():
        return
    there = shutil.disk_usage(SHARED)
    needed = (workers * PREFETCH + IN_HAND) * batch_bytes
    room = min(there.free, there.total // sharers())
    if not there.total or needed <= room:  # a total of 0: there is no limit
        return
    size = ceil(max(there.used + needed, needed * sharers()) / 2**20)
    fit = max(0, (room // batch_bytes - IN_HAND) // PREFETCH)
    raise ValueError(
        f"{workers} process{'es' * (workers > 1)} to decode images (NAP_WORKERS) would need "
        f"{_megabytes(needed)} of {SHARED} for batches, and there are {_megabytes(room)}; give it more "
        f"(docker run --shm-size {size}m), or set NAP_WORKERS={fit}"
        + ("" if fit else ", which needs none: the run decodes its images itself")
    )


def put_there_(*batch: Tensor) -> None:
    """Move a worker's batch to shared memory; the thread that sends it would do so, and lose what fails."""
    try:
        for part in batch:
            part.share_memory_()
    except RuntimeError as error:
        raise NoRoom(str(error)) from None


@contextmanager
def in_plain_words() -> Iterator[None]:
    """Errors inside that mean a lost worker or batch say so.

    Torch raises them wherever the run is when it notices, not just where it waits for a batch.
    """
    try:
        yield
    except NoRoom as error:
        raise WorkerLost(_no_room(str(error))) from error
    except RuntimeError as error:
        if (words := _plain(" ".join(str(error).split()))) is None:
            raise
        raise WorkerLost(words) from error


def _plain(said: str) -> str | None:
    """What torch's words mean; None where they are about something else."""
    if said.startswith("DataLoader worker") and "shared memory" in said:
        return _no_room(said)
    if said.startswith("DataLoader timed out"):
        return (
            f"no batch of images came for {PATIENCE_SECONDS:g} seconds: its files cannot be read, or it was "
            "lost on its way, perhaps with the thread that moves batches to the GPU; see to the disk that "
            f"they lie on, or set NAP_WORKERS=0; {_GO_ON}"
        )
    if said.startswith("DataLoader worker"):
        return (
            f"a process that decodes images was ended ({said.rstrip('. ')}), perhaps for want of memory; "
            f"set fewer NAP_WORKERS, and {_GO_ON}"
        )
    return None


def _no_room(said: str) -> str:
    return (
        f"a batch of images found no room in {SHARED} ({' '.join(said.split())}); make room there, give it "
        f"more (docker run --shm-size), or set fewer NAP_WORKERS, of which 0 need none; {_GO_ON}"
    )


def _megabytes(count: int) -> str:
    """
    >>> _megabytes(67_108_864), _megabytes(1_200_000)
    ('67 MB', '1.2 MB')
    """
    return f"{count / 1e6:,.0f} MB" if count >= 1e7 else f"{count / 1e6:.2g} MB"
