"""What determines the rows of one network, where every seed of an arm is a run of its own."""

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
