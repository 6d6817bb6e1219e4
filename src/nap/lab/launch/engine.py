"""What the driver knows of an engine: it places jobs, says which have ended, and can be asked to stop one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from nap.lab.launch.jobs import Job
from nap.lab.launch.options import SweepOptions

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 10.0
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # HTTP/2, which gRPC speaks
_SETTINGS = 4  # kind of the frame that a server answers with


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

    >>> gist('ray::nap x() (pid=3)\\n  File "process.py", line 5, in run\\nOSError: full\\n---\\nSee the log')
    'OSError: full'
    >>> gist("The node is gone.\\nRead more at ...")
    'The node is gone.'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no details"]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return raised[-1] if raised and 'File "' in text else lines[0]


def check_answers(address: str) -> None:
    """Raise ConnectionError, with the reason, where nobody speaks gRPC at HOST:PORT or ray://HOST:PORT.

    "auto" is looked up in RAY_ADDRESS; where that is not set, Ray knows by itself.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    if address in ("auto", "local") or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
        raise ConnectionError("an address is HOST:PORT, as 10.0.0.1:6379, or auto, or local")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS) as line:
            line.settimeout(ANSWER_SECONDS)
            line.sendall(_HELLO)
            answer = line.recv(9)
    except TimeoutError as error:
        raise ConnectionError(f"nobody answered within {ANSWER_SECONDS:g} seconds") from error
    except OSError as error:
        raise ConnectionError(error.strerror or str(error)) from error
    if len(answer) < 4 or answer[3] != _SETTINGS:
        raise ConnectionError("what answers there is no Ray cluster")


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
