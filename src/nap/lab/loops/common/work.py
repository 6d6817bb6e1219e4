"""What determines the rows of one network, where every seed of an arm is a run of its own, or a few are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class NetworkRun:
    """An arm, the settings that all arms share, and a seed."""

    arm: Any
    settings: Any
    seed: int
    tags: Mapping[str, Any] = field(default_factory=dict)  # more fields of each row
    together: int = 1  # networks, of this seed and the next ones, that learn in one step

    @property
    def seeds(self) -> range:
        """Of all its networks."""
        return range(self.seed, self.seed + self.together)
