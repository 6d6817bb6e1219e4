"""The processes that torchrun started for one command: which there are, and how they keep in step.

Process 0 leads. The others wait for what it shares with them, and what all do together ends well on all of
them or on none. These words travel apart from the numbers of the training, over gloo: a process may wait
for hours while another writes files.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from nap.lab.runner import content

Sharing = Literal["ddp", "fsdp"]
T = TypeVar("T")
LONG = timedelta(days=30)
PATIENCE_SECONDS = 10.0  # that one that failed waits for the others to come there; torchrun grants 30 in all


class CrewLost(OSError):
    """The processes are out of step: one is gone, or failed where the others wait for it. All must end."""


@dataclass(frozen=True)
class Place:
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1
    local: int = 0  # its number on this machine

    @classmethod
    def from_environment(cls) -> Place:
        """As torchrun says it; the only one where there is no torchrun."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        return cls(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))


class Crew:
    """All processes of a command, seen from one of them; by default it is alone.

    Args:
        sharing: how the processes share a network: a copy on each (ddp), or a piece on each (fsdp).
    """

    def __init__(
        self, place: Place | None = None, *, sharing: Sharing = "ddp", words: Any = None, notes: Any = None
    ):
        place = place or Place()
        self.rank, self.size, self.sharing = place.rank, place.size, sharing
        self.in_step, self._turn = True, 0
        self._words = words  # the group of all processes, over gloo
        self._notes = notes  # a store that all of them read

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes, prints and decides."""
        return self.rank == 0

    def shared(self, value: Any = None) -> Any:
        """What process 0 gives, on every process. Tensors go one by one, and arrive on the CPU."""
        if self.size == 1:
            return value
        if not self.in_step:
            raise CrewLost("the processes are out of step, so they end")
        try:
            frame = [_mapped(value, lambda t: torch.empty_like(t, device="meta"))]
            dist.broadcast_object_list(frame, src=0, group=self._words)
            if not self.leads:
                value = _mapped(frame[0], lambda t: torch.empty(t.shape, dtype=t.dtype))
            for tensor in content.tensors(value):
                if tensor.numel():
                    dist.broadcast(
                        tensor.detach().cpu().reshape(-1).view(torch.uint8), src=0, group=self._words
                    )
        except RuntimeError as error:
            raise CrewLost(
                f"process {self.rank} cannot reach the others ({_line(error)}), so it ends"
            ) from error
        return value

    def together(self, do: Callable[[], T]) -> T:
        """What `do` gives here, once every process has done it. If one failed, all raise.

        One that fails while the others wait for it, in the middle of a step for example, cannot tell
        them: it raises `CrewLost`, and torchrun ends the others.
        """
        if self.size == 1:
            return do()
        self.in_step = False
        result, mine = None, None
        try:
            result = do()
        except CrewLost:
            raise
        except Exception as error:
            mine = error
        failed = self._failures(mine)
        self.in_step = True
        if mine is not None:
            raise mine
        if failed:
            raise RuntimeError("; ".join(f"process {rank} failed: {text}" for rank, text in failed.items()))
        return result  # type: ignore[return-value]

    def agree(self, value: Any) -> bool:
        """Whether every process gives the same value."""
        if self.size == 1:
            return True
        said: list[Any] = [None] * self.size
        dist.all_gather_object(said, value, group=self._words)
        return all(each == value for each in said)

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """Process 0 goes through this block, then the others at once: they find the files that it made."""
        if self.size > 1 and not self.leads:
            dist.barrier(self._words)
        try:
            yield
        finally:
            if self.size > 1 and self.leads:
                dist.barrier(self._words)

    def _failures(self, mine: Exception | None) -> dict[int, str]:
        said: list[str | None] = [None] * self.size
        self._turn += 1
        try:
            self._notes.set(str(self.rank), str(self._turn))
            if mine is not None:
                self._wait_for_all()
            dist.all_gather_object(said, None if mine is None else _line(mine), group=self._words)
        except RuntimeError as error:
            reason = _line(error if mine is None else mine)
            raise CrewLost(f"process {self.rank} cannot go on with the others: {reason}") from mine or error
        return {rank: text for rank, text in enumerate(said) if text is not None}

    def _wait_for_all(self) -> None:
        """Return when all have come as far as this process; those that wait for it inside a step never do."""
        late = time.monotonic() + PATIENCE_SECONDS
        for rank in range(self.size):
            while not (self._notes.check([str(rank)]) and int(self._notes.get(str(rank))) >= self._turn):
                if time.monotonic() > late:
                    raise RuntimeError(f"process {rank} did not come in {PATIENCE_SECONDS:g} seconds")
                time.sleep(0.05)


_crew = Crew()


def here() -> Crew:
    """The crew that this process belongs to."""
    return _crew


@contextmanager
def joined(
    place: Place, device: torch.device, *, sharing: Sharing = "ddp", store: dist.Store | None = None
) -> Iterator[Crew]:
    """The crew of all processes that torchrun started, which `here` then gives, too.

    They find each other in `store`, by default the one that torchrun keeps.
    """
    global _crew
    if place.size == 1:
        yield _crew
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if store is None:
        store, _, _ = next(rendezvous("env://"))
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size)
    words, notes = dist.new_group(backend="gloo", timeout=LONG), dist.PrefixStore("nap", store)
    before, _crew = _crew, Crew(place, sharing=sharing, words=words, notes=notes)
    try:
        yield _crew
    finally:
        _crew = before
        gc.collect()  # what still holds the group would end its threads too late, and abort the process
        dist.destroy_process_group()


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
