"""This machine: the cores that a process may use, and how many processes of the lab share them."""

from __future__ import annotations

import os

SIDE_BY_SIDE = "NAP_SIDE_BY_SIDE"  # in the environment of a sweep's worker: how many are on its machine


def cores() -> int:
    """How many cores this process may use: `taskset` and containers may leave it some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sharers() -> int:
    """How many processes do here what this one does: those of torchrun, or the workers of a sweep."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) * int(os.environ.get(SIDE_BY_SIDE, "1"))
