"""Processes that carry out a small run and can be killed.

They are forked from a server that has looked up the commit: it must not change between two runs to be
compared.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from forked import server
from nap.lab.runner import RunFolder, Work, manifest
from nap.lab.runner.signals import stop_requests
from small_work import CONFIG, Training, run

manifest.source()


def start(target: Callable[..., None], *args: Any) -> tuple[ForkServerProcess, Connection]:
    """A process that runs `target(*args, events)` on one thread, and the events it sends."""
    events, theirs = server().Pipe(duplex=False)
    process = server().Process(target=_on_one_thread, args=(target, *args, theirs))
    process.start()
    theirs.close()
    return process, events


def send(process: ForkServerProcess, number: signal.Signals) -> None:
    """Send it a signal."""
    assert process.pid, "to signal process 0 would be to signal ourselves"
    os.kill(process.pid, number)


def finish(path: Path, total: int) -> None:
    """Carry the run to its end in a process that nobody disturbs."""
    process, events = start(session, path, total, 0.0)
    process.join()
    assert process.exitcode == 0
    events.close()


# what a process can do


def session(path: Path, total: int, disk_ms: float, events: Connection) -> None:
    """A session that tells of its units, and of its steps to the disk, which take `disk_ms` more."""

    def slow(name: str) -> None:
        events.send((name, 0))
        time.sleep(disk_ms / 1000)

    if disk_ms:
        _before_each_step_to_the_disk(slow)
    outcome = run(path, Training(total), on_progress=lambda work: events.send(("unit", work.done)))
    os._exit(outcome.exit_code)


def session_killed_at(path: Path, total: int, step: int, events: Connection) -> None:
    """A session that is killed just before its n-th step to the disk."""
    steps: list[str] = []

    def die_in_time(name: str) -> None:
        if len(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        steps.append(name)

    _before_each_step_to_the_disk(die_in_time)
    os._exit(run(path, Training(total)).exit_code)


def session_on_a_full_disk(path: Path, total: int, full_at: int, events: Connection) -> None:
    """A session whose files may not grow over 4 KB from some unit on; sends the error's message."""

    def fill(work: Work) -> None:
        if work.done == full_at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    try:
        run(path, Training(total), on_progress=fill)
    except OSError as error:
        events.send(str(error))
        os._exit(1)


def long_unit(path: Path, events: Connection) -> None:
    """A session deep in a unit that does not end; exits with 130 when that is aborted."""
    with stop_requests() as stop:

        class Long(Training):
            def step(self) -> list[dict[str, Any]]:
                events.send("deep in it")
                while stop.signal is None:
                    time.sleep(0.01)
                events.send(stop.signal)
                time.sleep(60)
                raise AssertionError("nobody aborted it")

        try:
            run(path, Long(), stop=stop)
        except KeyboardInterrupt:
            os._exit(130)


def hold(path: Path, events: Connection) -> None:
    """Open the folder and keep it."""
    with RunFolder.open(path, **CONFIG):
        events.send("open")
        time.sleep(60)


def open_as_nobody(path: Path, events: Connection) -> None:
    """Try to open the folder without the rights of root; sends the message."""
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        run(path)
    except ValueError as error:
        events.send(str(error))


def _on_one_thread(target: Callable[..., None], *args: Any) -> None:
    torch.set_num_threads(1)
    target(*args)


def _before_each_step_to_the_disk(act: Callable[[str], None]) -> None:
    """Call `act` with its name before every fsync and rename of this process."""

    def preceded(function: Callable[..., Any]) -> Callable[..., Any]:
        def both(*args: Any) -> Any:
            act(function.__name__)
            return function(*args)

        return both

    for name in ("fsync", "replace"):
        setattr(os, name, preceded(getattr(os, name)))
