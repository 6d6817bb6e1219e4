"""The cores of this machine, and the number of processes of the lab that share them."""

from __future__ import annotations

import os

SIDE_BY_SIDE = "NAP_SIDE_BY_SIDE"  # in the environment of a sweep's worker: how many are on its machine


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sharers() -> int:
    """The number of processes of torchrun, or of workers of a sweep, on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) * int(os.environ.get(SIDE_BY_SIDE, "1"))
