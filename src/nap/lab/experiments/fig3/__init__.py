"""Figure 3: implicit against explicit learning-rate schedules in Rainbow (§4.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nap.lab.experiments.common import rainbow
from nap.lab.experiments.common.rainbow import EVERY_THIRD, RainbowConfig
from nap.lab.experiments.experiment import Experiment, arm_names
from nap.lab.loops.rainbow.settings import FOUR, RainbowArm
from nap.validation import check_range as check

if TYPE_CHECKING:
    ArmName = str
else:
    ArmName = Literal[arm_names(FOUR)]


@dataclass(frozen=True)
class Fig3Config(RainbowConfig):
    """Settings of Figures 3 and 5 (right)."""

    games: tuple[str, ...] = ("pong",)
    """games, each with agents of its own: Atari ROM names, minatar/NAME, or catch"""
    arms: tuple[ArmName, ...] = arm_names(FOUR)
    """arms to train"""
    end_at: float = 0.5
    """fraction of training at which the linear schedule ends"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "end_at", self.end_at, 1e-6, 1)

    def rainbow_arms(self) -> list[RainbowArm]:
        return [replace(arm, end_at=self.end_at) for arm in FOUR if arm.name in self.arms]


PAPER = Fig3Config(games=EVERY_THIRD, eval_frames=500_000)  # which games the figure shows is not said
SMALL = replace(
    PAPER,
    games=("boxing", "freeway", "pong"),
    frames=2_000_000,
    intervals=20,
    eval_frames=0,
    num_envs=16,  # few enough for episodes to end in the first tenth of training, and in the last
    replay_size=400_000,
    seeds=3,
)
DEMO = Fig3Config(
    games=("catch", "pong"),
    frames=6_000,
    intervals=10,
    smoke_frames=3_200,
    num_envs=16,
    replay_size=8_000,
    min_replay_size=400,
    steps_per_update=3,
    batch_size=64,
    n_steps=7,
    target_every=50,
    learning_rate=2e-3,
    discount=0.95,
    hidden=64,
    atoms=21,
    v_max=4.0,
    seeds=3,
)

EXPERIMENT = Experiment(
    name="fig3",
    order=3,
    package=__name__,
    family=rainbow.__name__,
    title="implicit against explicit learning-rate schedules in Rainbow (Figure 3)",
    shows="With fixed norms and a constant rate Rainbow learns worse than with LayerNorm alone; an explicit "
    "linear schedule makes up for it, and more.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    readers=("fig5-suite",),
)
