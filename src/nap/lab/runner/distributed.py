"""The processes that torchrun started for one command, and how they keep in step.

Rank 0 writes, prints and decides; the others wait for what it broadcasts. What all ranks do together ends
well on all of them or on none. Control messages travel over gloo, apart from the gradients: a rank may wait
for hours while another one writes files.
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
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from nap.lab.runner import checkpoint
from nap.lab.runner.work import Work, Wrapped

Parallel = Literal["ddp", "fsdp"]
T = TypeVar("T")
LONG = timedelta(days=30)
PATIENCE_SECONDS = 10.0  # that one that failed waits for the others to come there; torchrun grants 30 in all


class ProcessLost(OSError):
    """The processes are out of step: one is gone, or failed where the others wait for it. All must end."""


@dataclass(frozen=True)
class Rank:
    """Which of how many processes this is."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> Rank:
        """As torchrun says it; the only one where there is no torchrun."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        return cls(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))


class ProcessGroup:
    """All processes of a command, seen from one of them; by default it is alone.

    Args:
        parallel: how the processes share a network: a copy on each (ddp), or a piece on each (fsdp).
    """

    def __init__(
        self, rank: Rank | None = None, *, parallel: Parallel = "ddp", gloo: Any = None, store: Any = None
    ):
        rank = rank or Rank()
        self.rank, self.world_size, self.parallel = rank.rank, rank.world_size, parallel
        self.in_sync, self._round = True, 0
        self._gloo = gloo  # the group of all processes, over gloo
        self._store = store  # a store that all of them read

    @property
    def is_rank0(self) -> bool:
        """Whether this is the process that writes, prints and decides."""
        return self.rank == 0

    def broadcast(self, value: Any = None) -> Any:
        """What rank 0 gives, on every process. Tensors go one by one, and arrive on the CPU."""
        if self.world_size == 1:
            return value
        if not self.in_sync:
            raise ProcessLost("the processes are out of step, so they end")
        try:
            frame = [_mapped(value, lambda t: torch.empty_like(t, device="meta"))]
            dist.broadcast_object_list(frame, src=0, group=self._gloo)
            if not self.is_rank0:
                value = _mapped(frame[0], lambda t: torch.empty(t.shape, dtype=t.dtype))
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
        """What `do` gives here, once every process has done it. If one failed, all raise.

        One that fails while the others wait for it, in the middle of a step for example, cannot tell
        them: it raises `ProcessLost`, and torchrun ends the others.
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
        """Whether every process gives the same value."""
        if self.world_size == 1:
            return True
        said: list[Any] = [None] * self.world_size
        dist.all_gather_object(said, value, group=self._gloo)
        return all(each == value for each in said)

    @contextmanager
    def rank0_first(self) -> Iterator[None]:
        """Rank 0 goes through this block, then the others at once: they find the files that it made."""
        if self.world_size > 1 and not self.is_rank0:
            dist.barrier(self._gloo)
        try:
            yield
        finally:
            if self.world_size > 1 and self.is_rank0:
                dist.barrier(self._gloo)

    def _failures(self, mine: Exception | None) -> dict[int, str]:
        said: list[str | None] = [None] * self.world_size
        self._round += 1
        try:
            self._store.set(str(self.rank), str(self._round))
            if mine is not None:
                self._wait_for_all()
            dist.all_gather_object(said, None if mine is None else _line(mine), group=self._gloo)
        except RuntimeError as error:
            reason = _line(error if mine is None else mine)
            raise ProcessLost(f"rank {self.rank} cannot go on with the others: {reason}") from (mine or error)
        return {rank: text for rank, text in enumerate(said) if text is not None}

    def _wait_for_all(self) -> None:
        """Return when all have come as far as this process; those that wait for it inside a step never do."""
        late = time.monotonic() + PATIENCE_SECONDS
        for rank in range(self.world_size):
            while not (self._store.check([str(rank)]) and int(self._store.get(str(rank))) >= self._round):
                if time.monotonic() > late:
                    raise RuntimeError(f"rank {rank} did not come in {PATIENCE_SECONDS:g} seconds")
                time.sleep(0.05)


_group = ProcessGroup()


def current_group() -> ProcessGroup:
    """The group that this process belongs to."""
    return _group


@contextmanager
def process_group(
    rank: Rank, device: torch.device, *, parallel: Parallel = "ddp", store: dist.Store | None = None
) -> Iterator[ProcessGroup]:
    """The group of all processes that torchrun started, which `current_group` then gives, too.

    They find each other in `store`, by default the one that torchrun keeps.
    """
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
        gc.collect()  # what still holds the group would end its threads too late, and abort the process
        dist.destroy_process_group()


class OnAllRanks(Wrapped):
    """A work as rank 0 calls it: each call is made on every rank."""

    def __init__(self, work: Work, group: ProcessGroup):
        super().__init__(work)
        self._group = group

    def step(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._on_all("step")
        return rows

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._on_all("state_dict")
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._on_all("load_state_dict", state)

    def _on_all(self, name: str, *given: Any) -> Any:
        self._group.broadcast((name, *given))
        return self._group.on_all_ranks(partial(getattr(self._work, name), *given))


@contextmanager
def on_all_ranks(work: Work, group: ProcessGroup) -> Iterator[Work]:
    """The work as rank 0 calls it, until the end of the block."""
    with released(group):
        yield work if group.world_size == 1 else OnAllRanks(work, group)


@contextmanager
def released(group: ProcessGroup) -> Iterator[None]:
    """At the end, whatever the reason, the processes that follow are told that it is the end."""
    try:
        yield
    finally:
        if group.in_sync:
            group.broadcast(None)


def follow_rank0(work: Work, group: ProcessGroup) -> None:
    """Do what rank 0 does with its work, until it ends there."""
    while (command := group.broadcast()) is not None:
        name, *given = command
        try_on_all_ranks(group, partial(getattr(work, name), *given))


def try_on_all_ranks(group: ProcessGroup, do: Callable[[], Any]) -> Any:
    """As `on_all_ranks`, but an error gives None: rank 0 has it, too, and decides what is next."""
    try:
        return group.on_all_ranks(do)
    except ProcessLost:
        raise
    except Exception:
        return None


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Plain data with its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(item, change) for item in value)
    return value


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
