"""Two processes as torchrun starts them, for tests of other people's trainers."""

from __future__ import annotations

import os
import socket
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from forked import run_ranks

SIZE = 2


def on_two(do: Callable[[Path], Any], folder: Path) -> list[Any]:
    """What `do(folder)` gave on each of two processes that find each other by their environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_ranks(_one, (do, folder, port), SIZE)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(SIZE)]


def _one(rank: int, do: Callable[[Path], Any], folder: Path, port: int) -> None:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": SIZE, "LOCAL_WORLD_SIZE": SIZE, "GROUP_RANK": 0}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    os.environ |= {key: str(value) for key, value in {**places, **meeting}.items()}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    code = 0
    try:
        torch.save(do(folder), folder / f"{rank}.pt")
        torch.distributed.barrier()
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)  # a thread of gloo may still abort the interpreter on its way out
