"""What the workers of a loader inherit, and must not act on; and how they end."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from nap.lab.loops.supervised.loading import loader, stream_batches
from nap.lab.loops.supervised.workers import worker_init

pytestmark = pytest.mark.multiprocess


class Owner:
    """Garbage that, like the owner of a thread that a fork leaves behind, must not end in a child."""

    def __init__(self) -> None:
        self.myself, self.process = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.process:
            os._exit(7)


def collecting_worker() -> None:
    worker_init(0)
    gc.collect()


def test_a_worker_collects_nothing_that_it_inherited() -> None:
    gc.disable()
    try:
        Owner()
        child = multiprocessing.get_context("fork").Process(target=collecting_worker)
        child.start()
        child.join()
    finally:
        gc.enable()
        gc.collect()
    assert child.exitcode == 0


def failing_worker() -> None:
    worker_init(0)
    raise ValueError("no more")


def test_a_worker_that_fails_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    child = multiprocessing.get_context("fork").Process(target=failing_worker)
    child.start()
    child.join()
    assert child.exitcode == 1
    assert capfd.readouterr().err.endswith("ValueError: no more\n")


class LongToSend:
    """What keeps the thread that sends it in C++ for a while; a tensor once it has arrived."""

    def __reduce__(self) -> Any:
        for _ in range(200):
            torch.ones(2**17).sort()
        return torch.ones, (1,)


class Parts:
    """Batches of which the first is sent at once."""

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        if number:
            return LongToSend(), LongToSend()
        print("begun")
        return torch.ones(1), torch.ones(1)


def test_streams_that_are_left_midway_end_soon_and_without_complaint() -> None:
    found = subprocess.run(
        [sys.executable, __file__],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "begun\nbegun\n", "")


if __name__ == "__main__":
    for _ in range(2):  # one is let go of, the other is still open when the process ends
        stream = stream_batches(loader(Parts(), range(9), workers=1, pin=False), torch.device("cpu"))
        next(stream)
