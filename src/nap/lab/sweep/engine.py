"""What the driver knows of an engine: it places jobs, says which have ended, and can be asked to stop one."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from .how import Sweeping
from .jobs import Job


@dataclass(frozen=True)
class End:
    """How a worker ended: its exit code, None where it was lost, and what the engine says of it."""

    code: int | None
    words: str = ""

    def __str__(self) -> str:
        if self.code is None:
            return f"its worker was lost: {self.words}"
        if self.code < 0:
            return f"its worker was killed by {signal.Signals(-self.code).name}"
        return f"its worker ended with exit code {self.code}"


class Placed(Protocol):
    """A job in the hands of an engine."""

    def ended(self) -> End | None:
        """How it ended; None while it waits or works."""

    def stop(self) -> None:
        """Have it save and end; where it has not begun, it never will."""

    def kill(self) -> None:
        """End it at once."""


class NotPlaced:
    """A job that the engine did not take."""

    def __init__(self, why: str):
        self._why = why

    def ended(self) -> End:
        return End(None, f"it could not be placed: {self._why}")

    def stop(self) -> None:
        """There is nothing to stop."""

    def kill(self) -> None:
        """There is nothing to kill."""


class Engine(Protocol):
    """Somewhere to place jobs."""

    @property
    def workers(self) -> int:
        """How many jobs to place at the same time; 0 for all of them."""

    @property
    def words(self) -> str:
        """Where the jobs go."""

    def place(self, job: Job) -> Placed:
        """Begin a job, or queue it."""


@contextlib.contextmanager
def opened(how: Sweeping, jobs: int) -> Iterator[Engine]:
    """The engine that was asked for; Ray and submitit are imported here at the earliest."""
    if how.engine == "ray":
        from .ray_engine import cluster

        with cluster(how) as engine:
            yield engine
    elif how.engine == "slurm":
        from .slurm_engine import Slurm

        yield Slurm(how)
    else:
        from .pool import Pool, slots_here

        yield Pool(slots_here(how)[:jobs])
