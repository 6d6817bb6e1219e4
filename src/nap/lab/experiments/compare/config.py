"""Settings of `nap compare`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nap.lab.seeds import check_seeds

ArmName = Literal["plain", "norm only", "NaP"]
ARMS: tuple[ArmName, ...] = ("plain", "norm only", "NaP")


@dataclass(frozen=True)
class Arm:
    """A way to train the user's model, by name."""

    name: ArmName


@dataclass(frozen=True)
class Settings:
    """What all arms share."""

    target: str = ""
    """FILE.py:FUNCTION"""
    goal: Literal["highest", "lowest"] = "highest"
    """which result is good"""
    learning_rate: float = 1e-3
    """learning rate"""
    seeds: int = 5
    """seeds of the results"""
    first_seed: int = 0
    """the first of them"""
    sha256_of_target: str = ""
    """of the code, filled in: results of changed code do not belong in the same folder"""


@dataclass(frozen=True)
class CompareConfig(Settings):
    """Settings of a comparison."""

    arms: tuple[ArmName, ...] = ARMS
    """arms to train"""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"--seeds {self.seeds}: it must be at least 1")
        check_seeds(self.first_seed, self.seeds)
