"""Starts a worker process, which saves and exits when its standard input is closed.

The system closes it as well when the process that started the worker dies. This module imports little, so
that it starts quickly on any node.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nap.lab import files

LOG_NAME = "worker.log"  # in a run's folder: the output of its workers
STOP_NAME = "worker.stop"  # there too, while its worker is asked to save and exit
POLL_SECONDS, STOP_POLL_SECONDS = 0.1, 1.0


def start(
    command: Sequence[str], *, where: Path, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a worker in the folder `where`, or in the run's own folder if this machine lacks that one.

    It has a process session of its own, since the driver handles Ctrl-C.
    """
    try:
        output = files.opened(log, "ab")
    except files.NotAFile as error:
        raise OSError(errno.EINVAL, str(error)) from error
    with output:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=where if where.is_dir() else log.parent,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def release(worker: subprocess.Popen[bytes]) -> None:
    """Ask a worker to save and exit."""
    if worker.stdin is not None:
        with contextlib.suppress(OSError):  # it has exited already
            worker.stdin.close()


def request_stop(folder: Path) -> None:
    """Ask the `run_worker` of this run, on whatever node, to release its worker."""
    with contextlib.suppress(OSError):  # on a full disk the engine's own cancellation is left
        os.close(os.open(folder / STOP_NAME, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666))


def withdraw_stop(folder: Path) -> None:
    """Withdraw `request_stop`, which was for an earlier worker."""
    (folder / STOP_NAME).unlink(missing_ok=True)


def run_worker(command: Sequence[str], where: Path, log: Path, environment: Mapping[str, str]) -> int:
    """Run a worker to its end, inside of a Ray task or a SLURM job; returns its exit code.

    A cancelled task, a time limit or `request_stop` lets the worker save first.
    """
    worker, next_check = start(command, where=where, log=log, environment=environment), 0.0
    try:
        while worker.poll() is None:  # short waits: an interrupt is seen between them
            if time.monotonic() >= next_check:
                if (log.parent / STOP_NAME).exists():
                    break
                next_check = time.monotonic() + STOP_POLL_SECONDS
            time.sleep(POLL_SECONDS)
    finally:
        release(worker)
        while worker.returncode is None:  # until it has saved, however often it is interrupted
            with contextlib.suppress(KeyboardInterrupt):
                worker.wait()
        with contextlib.suppress(OSError):  # the driver withdraws it as well
            withdraw_stop(log.parent)
    return worker.returncode
