"""Settings of ablations at three scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from nap.lab.experiments.common.rainbow.config import RainbowConfig, adapt
from nap.lab.experiments.fig3 import config as fig3
from nap.lab.experiments.minatar import config as minatar
from nap.lab.loops.rainbow.games import MINATAR
from nap.validation import check_range as check

ArmName = Literal[
    "NaP",
    "NaP, projected rarely",
    "NaP, no offsets",
    "LayerNorm",
    "LayerNorm, weight decay",
    "Rainbow",
    "Rainbow, weight decay",
]


@dataclass(frozen=True)
class AblationsConfig(RainbowConfig):
    """Settings of the ablations of Rainbow agents."""

    games: tuple[str, ...] = MINATAR
    """games, each with agents of its own: MinAtar's, Atari ROM names, or catch, which is built in"""
    arms: tuple[ArmName, ...] = get_args(ArmName)
    """arms to train; NaP has the linear schedule, which ends halfway"""
    rarely: int = 1_000
    """updates between two projections, where they are rare"""
    weight_decay: float = 0.1
    """AdamW's, of weights, where there is one"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "rarely", self.rarely, 2)
        check(self, "weight_decay", self.weight_decay, 1e-9)


PAPER = adapt(
    AblationsConfig, fig3.PAPER, games=("boxing", "freeway", "pong"), frames=20_000_000, noise="joint"
)
SMALL = adapt(AblationsConfig, minatar.SMALL)
DEMO = adapt(AblationsConfig, minatar.DEMO, frames=8_000, rarely=50)
