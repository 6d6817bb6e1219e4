"""The processes that torchrun started for one command.

Rank 0 writes, prints and decides; the others follow what it broadcasts. A call on all ranks succeeds on all
of them or on none. Control messages go over gloo, since a rank may wait for hours while rank 0 writes files.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from nap.lab.runner import checkpoint
from nap.lab.runner.work import Work, Wrapped

Parallel = Literal["ddp", "fsdp"]
T = TypeVar("T")
LONG = timedelta(days=30)
PATIENCE_SECONDS = 10.0  # a failed rank waits so long for the others; torchrun kills after 30


class ProcessLost(OSError):
    """A rank is gone, or failed while the others wait for it: all processes must end."""


@dataclass(frozen=True)
class Rank:
    """The rank of this process."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> Rank:
        """The rank that torchrun set; rank 0 of 1 without torchrun."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        return cls(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))


class ProcessGroup:
    """The processes of a command; with "ddp" each has a copy of the network, with "fsdp" a shard."""

    def __init__(
        self, rank: Rank | None = None, *, parallel: Parallel = "ddp", gloo: Any = None, store: Any = None
    ):
        rank = rank or Rank()
        self.rank, self.world_size, self.parallel = rank.rank, rank.world_size, parallel
        self.in_sync, self._round = True, 0
        self._gloo, self._store = gloo, store

    @property
    def is_rank0(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any = None) -> Any:
        """The value of rank 0, on every process; tensors arrive on the CPU."""
        if self.world_size == 1:
            return value
        if not self.in_sync:
            raise ProcessLost("the processes are out of step, so they end")
        try:
            frame = [checkpoint.map_tensors(value, lambda t: torch.empty_like(t, device="meta"))]
            dist.broadcast_object_list(frame, src=0, group=self._gloo)
            if not self.is_rank0:
                value = checkpoint.map_tensors(frame[0], lambda t: torch.empty(t.shape, dtype=t.dtype))
            for tensor in checkpoint.tensors(value):
                if tensor.numel():
                    dist.broadcast(
                        tensor.detach().cpu().reshape(-1).view(torch.uint8), src=0, group=self._gloo
                    )
        except RuntimeError as error:
            raise ProcessLost(
                f"rank {self.rank} cannot reach the others ({_line(error)}), so it ends"
            ) from error
        return value

    def on_all_ranks(self, do: Callable[[], T]) -> T:
        """The result of `do` here, once every rank has called it; if one rank fails, all raise.

        A rank that fails inside a collective operation raises `ProcessLost`, and torchrun ends the others.
        """
        if self.world_size == 1:
            return do()
        self.in_sync = False
        result, mine = None, None
        try:
            result = do()
        except ProcessLost:
            raise
        except Exception as error:
            mine = error
        failed = self._failures(mine)
        self.in_sync = True
        if mine is not None:
            raise mine
        if failed:
            raise RuntimeError("; ".join(f"rank {rank} failed: {text}" for rank, text in failed.items()))
        return result  # type: ignore[return-value]

    def all_equal(self, value: Any) -> bool:
        """Whether all ranks have the same value."""
        if self.world_size == 1:
            return True
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._gloo)
        return all(each == value for each in values)

    @contextmanager
    def rank0_first(self) -> Iterator[None]:
        """Rank 0 runs this block first, then the other ranks, which find the files that it made."""
        if self.world_size > 1 and not self.is_rank0:
            dist.barrier(self._gloo)
        try:
            yield
        finally:
            if self.world_size > 1 and self.is_rank0:
                dist.barrier(self._gloo)

    def _failures(self, mine: Exception | None) -> dict[int, str]:
        errors: list[str | None] = [None] * self.world_size
        self._round += 1
        try:
            self._store.set(str(self.rank), str(self._round))
            if mine is not None:
                self._wait_for_all()
            dist.all_gather_object(errors, None if mine is None else _line(mine), group=self._gloo)
        except RuntimeError as error:
            reason = _line(error if mine is None else mine)
            raise ProcessLost(f"rank {self.rank} cannot go on with the others: {reason}") from (mine or error)
        return {rank: text for rank, text in enumerate(errors) if text is not None}

    def _wait_for_all(self) -> None:
        """Return once all ranks have reached this call; those inside a collective operation never do."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for rank in range(self.world_size):
            while not (self._store.check([str(rank)]) and int(self._store.get(str(rank))) >= self._round):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"rank {rank} did not come in {PATIENCE_SECONDS:g} seconds")
                time.sleep(0.05)


_group = ProcessGroup()


def current_group() -> ProcessGroup:
    """The process group of the command that is running."""
    return _group


@contextmanager
def process_group(
    rank: Rank, device: torch.device, *, parallel: Parallel = "ddp", store: dist.Store | None = None
) -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started; `current_group` returns this group inside the block."""
    global _group
    if rank.world_size == 1:
        yield _group
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if store is None:
        store, _, _ = next(rendezvous("env://"))
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank.rank, world_size=rank.world_size)
    gloo, store = dist.new_group(backend="gloo", timeout=LONG), dist.PrefixStore("nap", store)
    before, _group = _group, ProcessGroup(rank, parallel=parallel, gloo=gloo, store=store)
    try:
        yield _group
    finally:
        _group = before
        gc.collect()  # a group that is freed later would abort the process
        dist.destroy_process_group()


class OnAllRanks(Wrapped):
    """On rank 0: each call of this work is made on every rank."""

    def __init__(self, work: Work, group: ProcessGroup):
        super().__init__(work)
        self._group = group

    def step(self) -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], self._on_all("step"))

    def state_dict(self) -> dict[str, Any]:
        return cast(dict[str, Any], self._on_all("state_dict"))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._on_all("load_state_dict", state)

    def _on_all(self, name: str, *args: Any) -> Any:
        self._group.broadcast((name, *args))
        return self._group.on_all_ranks(partial(getattr(self._work, name), *args))


@contextmanager
def on_all_ranks(work: Work, group: ProcessGroup) -> Iterator[Work]:
    """The work for rank 0 to call; the other ranks follow until the end of the block."""
    with released(group):
        yield work if group.world_size == 1 else OnAllRanks(work, group)


@contextmanager
def released(group: ProcessGroup) -> Iterator[None]:
    """At the end of the block, also after an error, tell the ranks that follow to stop."""
    try:
        yield
    finally:
        if group.in_sync:
            group.broadcast(None)


def follow_rank0(work: Work, group: ProcessGroup) -> None:
    """Repeat the calls that rank 0 makes on its work, until it tells this rank to stop."""
    while (command := group.broadcast()) is not None:
        name, *args = command
        try_on_all_ranks(group, partial(getattr(work, name), *args))


def try_on_all_ranks(group: ProcessGroup, do: Callable[[], Any]) -> Any:
    """`on_all_ranks`, but None after an error: rank 0 raises it as well, and decides what is next."""
    try:
        return group.on_all_ranks(do)
    except ProcessLost:
        raise
    except Exception:
        return None


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
