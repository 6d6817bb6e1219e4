"""What the driver knows of an engine: it places jobs, says which have ended, and can be asked to stop one."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from nap.lab.launch.jobs import Job
from nap.lab.launch.options import SweepOptions


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


class NotTaken(Exception):
    """The engine takes no more jobs for now, and says why."""


class Engine(Protocol):
    """Somewhere to place jobs."""

    @property
    def workers(self) -> int:
        """How many jobs to place at the same time; 0 for all of them."""

    @property
    def words(self) -> str:
        """Where the jobs go."""

    def place(self, job: Job) -> Placed:
        """Begin a job, or queue it.

        Raises NotTaken where the engine is full, and OSError where this one cannot be begun.
        """


def gist(text: str) -> str:
    """The line of a remote error that says what it was: that of a traceback is its last, others the first.

    >>> gist('ray::nap x() (pid=3)\\n  File "launch.py", line 51, in sit\\nOSError: full\\n---\\nSee the log')
    'OSError: full'
    >>> gist("The node is gone.\\nRead more at ...")
    'The node is gone.'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no details"]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return raised[-1] if raised and 'File "' in text else lines[0]


@contextlib.contextmanager
def opened(options: SweepOptions, jobs: int) -> Iterator[Engine]:
    """The engine that was asked for; Ray and submitit are imported here at the earliest."""
    if options.engine == "ray":
        from nap.lab.launch.ray_engine import cluster

        with cluster(options) as engine:
            yield engine
    elif options.engine == "slurm":
        from nap.lab.launch.slurm_engine import Slurm

        yield Slurm(options)
    else:
        from nap.lab.launch.pool import Pool, slots_here

        yield Pool(slots_here(options)[:jobs])
