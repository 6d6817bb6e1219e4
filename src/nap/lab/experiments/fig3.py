"""Figure 3: implicit against explicit learning-rate schedules in Rainbow (§4.2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from nap.lab.experiments.agents import EVERY_THIRD, Playing, single_runs
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.loops.rainbow.variants import FOUR
from nap.validation import check_range as check

ArmName = Literal["Rainbow", "LayerNorm", "NaP", "NaP + schedule"]


@dataclass(frozen=True)
class Schedules(Playing):
    """Settings of Figures 3 and 5 (right)."""

    games: tuple[str, ...] = ("pong",)
    """games, each with agents of its own: Atari ROM names, or catch, which is built in"""
    arms: tuple[ArmName, ...] = get_args(ArmName)
    """arms to train"""
    end_at: float = 0.5
    """fraction of training at which the explicit schedule reaches its end"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "end_at", self.end_at, 1e-6, 1)


def runs(config: Schedules, experiment: str = "fig3") -> list[Run]:
    """A run for each game, arm and seed."""
    variants = [replace(v, end_at=config.end_at) for v in FOUR if v.name in config.arms]
    return single_runs(experiment, config, config.games, variants)


PAPER = Schedules(games=EVERY_THIRD, evaluation=500_000)  # which games the figure shows is not said
SMALL = replace(
    PAPER,
    games=("boxing", "freeway", "pong"),
    frames=2_000_000,
    intervals=20,
    evaluation=0,
    lanes=16,  # few enough for episodes to end in the first tenth of training, and in the last
    replay=400_000,
    seeds=3,
)
DEMO = Schedules(
    games=("catch", "pong"),
    frames=6_000,
    intervals=10,
    smoke=3_200,
    lanes=16,
    replay=8_000,
    learn_start=400,
    steps_per_update=3,
    batch_size=64,
    n_steps=7,
    target_every=50,
    learning_rate=2e-3,
    discount=0.95,
    hidden=64,
    atoms=21,
    limit=4.0,
    seeds=3,
)

EXPERIMENT = Experiment(
    name="fig3",
    title="implicit against explicit learning-rate schedules in Rainbow (Figure 3)",
    shows="With fixed norms and a constant rate Rainbow learns worse than with LayerNorm alone; an explicit "
    "linear schedule makes up for it, and more.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=runs,
    needs={"demo": "", "small": "", "paper": ""},
    folder="fig3",
)
