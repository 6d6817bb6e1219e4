"""A worker on a leash: a process that saves and ends when the one that started it lets go, or dies.

The leash is the worker's standard input. The system closes it when its holder is gone, however it went.
Imports next to nothing, so that it starts at once wherever an engine places it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from nap.lab import files

LOG_NAME = "worker.log"  # in a run's folder: what its workers said
STOP_NAME = "worker.stop"  # there, too, as long as somebody asks for its worker to save and end
LOOK_EVERY_SECONDS, LOOK_FOR_STOP_SECONDS = 0.1, 1.0


def start(
    command: Sequence[str], *, where: Path, log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A worker that has begun; in a session of its own, since Ctrl-C is for the driver to answer.

    Where this machine has no folder `where`, it works in the run's own.
    """
    with _appended(log) as said:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            cwd=where if where.is_dir() else log.parent,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def _appended(log: Path) -> IO[bytes]:
    try:
        return files.opened(log, "ab")
    except files.NotAFile as error:
        raise OSError(errno.EINVAL, str(error)) from error


def let_go(worker: subprocess.Popen[bytes]) -> None:
    """Ask a worker to save and end."""
    if worker.stdin is not None:
        with contextlib.suppress(OSError):  # it has ended already
            worker.stdin.close()


def ask_to_stop(folder: Path) -> None:
    """Have `run_worker` let go of the worker of that run, wherever it sits, once it looks into the folder."""
    with contextlib.suppress(OSError):  # no room, for example: the engine's own way is left
        os.close(os.open(folder / STOP_NAME, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666))


def forget_stop(folder: Path) -> None:
    """Take back what was asked of an earlier worker."""
    (folder / STOP_NAME).unlink(missing_ok=True)


def run_worker(command: Sequence[str], where: Path, log: Path, environment: Mapping[str, str]) -> int:
    """The exit code of a worker that runs to its end beside this process: a task of Ray, a job of SLURM.

    Whatever ends the wait, a cancelled task, a time that is up, or `ask_to_stop`, lets the worker save first.
    """
    worker, next_look = start(command, where=where, log=log, environment=environment), 0.0
    try:
        while worker.poll() is None:  # short waits: an interrupt is seen between them
            if time.monotonic() >= next_look:
                if (log.parent / STOP_NAME).exists():
                    break
                next_look = time.monotonic() + LOOK_FOR_STOP_SECONDS
            time.sleep(LOOK_EVERY_SECONDS)
    finally:
        let_go(worker)
        _see_out(worker)
        with contextlib.suppress(OSError):  # the next who places this run forgets it, too
            forget_stop(log.parent)
    return worker.returncode


def _see_out(worker: subprocess.Popen[bytes]) -> None:
    """Wait until a worker has saved; one who asks twice does not make it quicker."""
    while worker.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):
            worker.wait()
