"""Two processes that do something together, for tests of work that is spread over them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from forked import run_ranks
from nap.lab.runner.distributed import Parallel, Rank, process_group

CPU = torch.device("cpu")
SIZE = 2


def both(do: Callable[..., Any], folder: Path, *args: Any, parallel: Parallel = "ddp") -> list[Any]:
    """What `do(group, *args)` gave on each of two processes; files between them lie in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(args, folder / "args.pt")  # a file: memory of tensors is shared by too many descriptors
    run_ranks(_one, (do, folder, parallel), SIZE)
    return [torch.load(folder / f"{rank}.pt") for rank in range(SIZE)]


def _one(rank: int, do: Callable[..., Any], folder: Path, parallel: Parallel) -> None:
    torch.set_num_threads(1)
    args = torch.load(folder / "args.pt", weights_only=False)
    store, code = dist.FileStore(str(folder / "store"), SIZE), 0
    try:
        with process_group(Rank(rank, SIZE, rank), CPU, parallel=parallel, store=store) as group:
            torch.save(do(group, *args), folder / f"{rank}.pt")
            dist.barrier()
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)  # a thread of gloo may still abort the interpreter on its way out
