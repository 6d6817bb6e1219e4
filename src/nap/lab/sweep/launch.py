"""A worker on a leash: a process that saves and ends when the one that started it lets go, or dies.

The leash is the worker's standard input. The system closes it when its holder is gone, however it went.
Imports nothing of the lab, so that it starts at once wherever an engine places it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LOG_NAME = "worker.log"  # in a run's folder: what its workers said
LOOK_EVERY_SECONDS = 0.1


def start(
    command: Sequence[str], *, where: Path, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A worker that has begun; in a session of its own, since Ctrl-C is for the driver to answer.

    Where this machine has no folder `where`, it works in the run's own.
    """
    with log.open("ab") as said:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=where if where.is_dir() else log.parent,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def let_go(worker: subprocess.Popen[bytes]) -> None:
    """Ask a worker to save and end."""
    if worker.stdin is not None:
        with contextlib.suppress(OSError):  # it has ended already
            worker.stdin.close()


def sit(command: Sequence[str], where: Path, log: Path, environment: Mapping[str, str]) -> int:
    """The exit code of a worker that runs to its end beside this process: a task of Ray, a job of SLURM.

    Whatever ends the wait, a cancelled task or a time that is up, lets the worker save first.
    """
    worker = start(command, where=where, log=log, environment=environment)
    try:
        while worker.poll() is None:  # short waits: an interrupt is seen between them
            time.sleep(LOOK_EVERY_SECONDS)
    finally:
        let_go(worker)
        worker.wait()
    return worker.returncode
