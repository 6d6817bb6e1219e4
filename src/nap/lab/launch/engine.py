"""The interface between the driver of a sweep and the engines that run its jobs."""

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
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # of HTTP/2, as in gRPC
_SETTINGS = 4  # type of the frame that a server answers with


@dataclass(frozen=True)
class Exit:
    """The exit code of a worker; None if the engine lost it, for the reason in `detail`."""

    code: int | None
    detail: str = ""

    def __str__(self) -> str:
        if self.code is None:
            return f"its worker was lost: {self.detail}"
        if self.code < 0:
            return f"its worker was killed by {signal.Signals(-self.code).name}"
        return f"its worker ended with exit code {self.code}"


class Handle(Protocol):
    """A submitted job."""

    def poll(self) -> Exit | None:
        """How its worker exited; None while it waits or runs."""

    def stop(self) -> None:
        """Ask it to save and exit; a job that waits is cancelled."""

    def kill(self) -> None:
        """Kill it at once."""


class EngineFull(Exception):
    """The engine takes no more jobs for now; the message says why."""


class Engine(Protocol):
    """Runs jobs somewhere."""

    @property
    def workers(self) -> int:
        """How many jobs to submit at the same time; 0 for all of them."""

    @property
    def description(self) -> str:
        """Where the jobs run, in words."""

    def submit(self, job: Job) -> Handle:
        """Start or queue a job; raises EngineFull, or OSError if this one cannot be started."""


def error_line(text: str) -> str:
    """The line of a remote error with its message: the last one of a traceback, else the first.

    >>> error_line('ray::x() (pid=3)\\n  File "x.py", line 5, in run\\nOSError: full\\n---\\nSee the log')
    'OSError: full'
    >>> error_line("The node is gone.\\nRead more at ...")
    'The node is gone.'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no details"]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return raised[-1] if raised and 'File "' in text else lines[0]


def check_ray_address(address: str) -> None:
    """Raise ConnectionError unless a gRPC server answers at HOST:PORT or ray://HOST:PORT.

    "auto" means RAY_ADDRESS; if that is not set, Ray finds a cluster itself.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    if address in ("auto", "local") or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
        raise ConnectionError("an address is HOST:PORT, as 10.0.0.1:6379, or auto, or local")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(_HELLO)
            answer = connection.recv(9)
    except TimeoutError as error:
        raise ConnectionError(f"nobody answered within {ANSWER_SECONDS:g} seconds") from error
    except OSError as error:
        raise ConnectionError(error.strerror or str(error)) from error
    if len(answer) < 4 or answer[3] != _SETTINGS:
        raise ConnectionError("what answers there is no Ray cluster")


@contextlib.contextmanager
def open_engine(options: SweepOptions, jobs: int) -> Iterator[Engine]:
    """The engine of --engine; Ray and submitit are imported only here."""
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
