"""What the works of all loops share: a run's description, the length of a chunk, the seed of a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
CHUNK = 10  # updates between two checks for signals; torchrun grants 30 seconds to these and the save


@dataclass(frozen=True)
class NetworkRun:
    """All that determines the rows of one network: an arm, the settings that all arms share, and a seed."""

    arm: Any
    settings: Any
    seed: int
    tags: Mapping[str, Any] = field(default_factory=dict)  # more fields of each row
    seeds_per_run: int = 1  # networks, of this seed and the next ones, that are trained in one step

    @property
    def seeds(self) -> range:
        """The seeds of all its networks."""
        return range(self.seed, self.seed + self.seeds_per_run)

    def row(self, seed: int | None = None) -> Row:
        """The fields that all rows of a network begin with."""
        return {"arm": self.arm.name, **self.tags, "seed": self.seed if seed is None else seed}


def next_chunk(done: int, total: int, *, eval_every: int) -> tuple[int, int]:
    """The update that ends the next chunk, and the one after which the next row is due.

    >>> next_chunk(15, 40, eval_every=20), next_chunk(20, 40, eval_every=20)
    ((20, 20), (30, 40))
    """
    row_due = min(total, (done // eval_every + 1) * eval_every)
    return min(row_due, done + CHUNK), row_due


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers inside are drawn from this seed; torch's global state on the CPU is restored after."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
