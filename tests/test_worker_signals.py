"""What the workers of a loader inherit, and must not act on."""

from __future__ import annotations

import gc
import multiprocessing
import os

from nap.lab.vision.worker_signals import settle


class Owner:
    """Garbage that, like the owner of a thread that a fork leaves behind, must not end in a child."""

    def __init__(self) -> None:
        self.myself, self.process = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.process:
            os._exit(7)


def collecting_worker() -> None:
    settle(0)
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
    assert child.exitcode == 0
