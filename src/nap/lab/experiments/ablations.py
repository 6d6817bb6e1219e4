"""What §1 and §3.3 say of Rainbow agents beside the figures: rare projections, no offsets, weight decay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from nap.lab.experiments import fig3, minatar
from nap.lab.experiments.agents import Playing, single_runs
from nap.lab.experiments.experiment import Experiment, Run, Tuning
from nap.lab.loops.rainbow.games import MINATAR
from nap.lab.loops.rainbow.variants import LAYER_NORM, NAP_LINEAR, RAINBOW
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
class Ablations(Playing):
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


def runs(config: Ablations) -> list[Run]:
    """A run for each game, arm and seed."""
    bases = {"NaP": NAP_LINEAR, "LayerNorm": LAYER_NORM, "Rainbow": RAINBOW}
    changes = {
        "projected rarely": {"every": config.rarely},
        "no offsets": {"offsets": False},
        "weight decay": {"weight_decay": config.weight_decay},
        "": {},
    }
    variants = []
    for name in config.arms:
        base, _, change = name.partition(", ")
        variants.append(replace(bases[base], name=name, **changes[change]))  # type: ignore[arg-type]
    return single_runs("ablations", config, config.games, variants)


def _ablations(config: fig3.Schedules) -> Ablations:
    """The same agent and games, for these arms."""
    shared = {name: value for name, value in vars(config).items() if name not in ("arms", "end_at")}
    return Ablations(**shared)


EXPERIMENT = Experiment(
    name="ablations",
    title="rare projections, no offsets and weight decay in Rainbow agents (§1, §3.3)",
    shows="Projecting every 1,000 updates is as good as after each; removing offsets may help; weight decay "
    "hurts agents that learn values.",
    scales={
        "demo": replace(_ablations(minatar.DEMO), frames=8_000, rarely=50),
        "small": _ablations(minatar.SMALL),
        "paper": replace(
            _ablations(fig3.PAPER), games=("boxing", "freeway", "pong"), frames=20_000_000, noise="joint"
        ),
    },
    runs=runs,
    needs={"demo": "", "small": "", "paper": ""},
    folder="ablations",
    tuning=Tuning(metric="score", rates=minatar.TUNING.rates, changes={"intervals": 4}),
)
