"""What §1 and §3.3 say of Rainbow agents beside the figures: rare projections, no offsets, weight decay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nap.lab.experiments import fig3, minatar
from nap.lab.experiments.common import rainbow
from nap.lab.experiments.common.rainbow import RainbowConfig, adapt
from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.minatar import TUNING
from nap.lab.loops.rainbow.games import MINATAR
from nap.lab.loops.rainbow.settings import LAYER_NORM, NAP, NAP_LINEAR, RAINBOW, RainbowArm
from nap.validation import check_range as check

RARELY, NO_OFFSETS = f"{NAP.name}, projected rarely", f"{NAP.name}, no offsets"
LAYER_NORM_DECAY, RAINBOW_DECAY = f"{LAYER_NORM.name}, weight decay", f"{RAINBOW.name}, weight decay"
ARMS = (NAP.name, RARELY, NO_OFFSETS, LAYER_NORM.name, LAYER_NORM_DECAY, RAINBOW.name, RAINBOW_DECAY)
if TYPE_CHECKING:
    ArmName = str
else:
    ArmName = Literal[ARMS]


@dataclass(frozen=True)
class AblationsConfig(RainbowConfig):
    """Settings of the ablations of Rainbow agents."""

    games: tuple[str, ...] = MINATAR
    """games, each with agents of its own: MinAtar's, Atari ROM names, or catch, which is built in"""
    arms: tuple[ArmName, ...] = ARMS
    """arms to train; NaP has the linear schedule, which ends halfway"""
    rarely: int = 1_000
    """updates between two projections, where they are rare"""
    weight_decay: float = 0.1
    """AdamW's, of weights, where there is one"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "rarely", self.rarely, 2)
        check(self, "weight_decay", self.weight_decay, 1e-9)

    def rainbow_arms(self) -> list[RainbowArm]:
        arms = (
            replace(NAP_LINEAR, name=NAP.name),
            replace(NAP_LINEAR, name=RARELY, project_every_updates=self.rarely),
            replace(NAP_LINEAR, name=NO_OFFSETS, offsets=False),
            LAYER_NORM,
            replace(LAYER_NORM, name=LAYER_NORM_DECAY, weight_decay=self.weight_decay),
            RAINBOW,
            replace(RAINBOW, name=RAINBOW_DECAY, weight_decay=self.weight_decay),
        )
        by_name = {arm.name: arm for arm in arms}
        return [by_name[name] for name in self.arms]


PAPER = adapt(
    AblationsConfig, fig3.PAPER, games=("boxing", "freeway", "pong"), frames=20_000_000, noise="joint"
)
SMALL = adapt(AblationsConfig, minatar.SMALL)
DEMO = adapt(AblationsConfig, minatar.DEMO, frames=8_000, rarely=50)

EXPERIMENT = Experiment(
    name="ablations",
    order=12,
    package=__name__,
    family=rainbow.__name__,
    title="rare projections, no offsets and weight decay in Rainbow agents (§1, §3.3)",
    shows="Projecting every 1,000 updates is as good as after each; removing offsets may help; weight decay "
    "hurts agents that learn values.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    tuning=TUNING,
)
