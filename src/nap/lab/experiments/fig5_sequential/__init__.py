"""Figure 5, left: one Rainbow agent for a sequence of Atari games, played twice (§5.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nap.lab.experiments import fig3
from nap.lab.experiments.common.rainbow import RainbowConfig, adapt
from nap.lab.experiments.experiment import Experiment, arm_names
from nap.lab.loops.rainbow.settings import LAYER_NORM, NAP, RAINBOW, Changes
from nap.validation import check_range as check

CONTINUAL = tuple(
    replace(variant, schedule="cosine", affine="decay" if variant.project else "free")
    for variant in (RAINBOW, LAYER_NORM, NAP)
)
FRESH = replace(CONTINUAL[0], name="fresh Rainbow")
ARMS = (*CONTINUAL, FRESH)
if TYPE_CHECKING:
    ArmName = str
else:
    ArmName = Literal[arm_names(ARMS)]
# The first five could be confirmed as those of Abbas et al.; the other five are our assumption.
TEN = (
    "alien", "atlantis", "boxing", "breakout", "centipede",
    "demon_attack", "gopher", "krull", "pong", "seaquest",
)  # fmt: skip


@dataclass(frozen=True)
class Fig5SequentialConfig(RainbowConfig, Changes):
    """Settings of Figure 5 (left)."""

    games: tuple[str, ...] = TEN
    """games in the order in which they are played: Atari ROM names, or catch, which is built in"""
    cycles: int = 2
    """how often the sequence is played"""
    arms: tuple[ArmName, ...] = arm_names(ARMS)
    """arms to train"""
    decay: float = 1e-3
    """NaP: how far scales and offsets are pulled back at each update"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "cycles", self.cycles, 1)
        check(self, "decay", self.decay, 0, 1)


PAPER = Fig5SequentialConfig(frames=20_000_000, intervals=40)
SMALL = replace(
    PAPER,
    games=("boxing", "breakout", "pong"),
    frames=1_000_000,
    intervals=10,
    num_envs=16,
    replay_size=250_000,
    seeds=3,
)
DEMO = adapt(
    Fig5SequentialConfig,
    fig3.DEMO,
    games=("catch", "catch-mirrored"),
    frames=2_400,
    intervals=6,
    smoke_frames=0,
)

EXPERIMENT = Experiment(
    name="fig5-sequential",
    order=6,
    package=__name__,
    title="one Rainbow agent for a sequence of Atari games, played twice (Figure 5, left)",
    shows="On its second visit to each game an agent with NaP learns like a freshly initialised one; without "
    "NaP it does not.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
)
