"""Processes forked from a server that has torch imported, so that each starts in milliseconds."""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import Any
from unittest import mock

import torch

FORKSERVER = mp.get_context("forkserver")
FORKSERVER.set_forkserver_preload([__name__, "sessions"])  # by name: the core is tested without the lab
# The first optimizer makes torch import its compiler: a second, not in every process.
torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])


def server() -> ForkServerContext:
    """The context of the server, which runs."""
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}):
        forkserver.ensure_running()  # Python 3.11 does not give the server our sys.path
    return FORKSERVER


def run_ranks(target: Callable[..., None], args: tuple[Any, ...], size: int) -> None:
    """Run `target(rank, *args)` in so many processes, with this process's environment."""
    server()
    every = (target, dict(os.environ), args)
    torch.multiprocessing.start_processes(_in_environment, every, nprocs=size, start_method="forkserver")


def _in_environment(
    rank: int, target: Callable[..., None], environment: dict[str, str], args: tuple[Any, ...]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(rank, *args)
