"""Figure 1, the case study: labels drawn anew over and over, and what that does to one network (§3.2).

Arms: the network as it is; with LayerNorm; with LayerNorm and every weight put back to its first norm
at each change of task; with NaP, where that happens after each update. Two more arms start every task
from a fresh initialisation: what a network that has lost nothing would do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from nap.lab.experiments.arm_runs import arm_runs
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.training.arms import FRESH, FRESH_NO_NORM, LAYER_NORM, NAP, NO_NORM, RESCALED
from nap.lab.training.settings import OneNetwork, Projected, continual

ARMS = (NO_NORM, LAYER_NORM, RESCALED, NAP, FRESH, FRESH_NO_NORM)
ArmName = Literal["no norm", "LayerNorm", "LayerNorm, rescaled each task", "NaP", "fresh", "fresh, no norm"]
DQN_STYLE = (32, 32, 64, 64)


@dataclass(frozen=True)
class CaseStudy(OneNetwork, Projected):
    """Settings of Figure 1."""

    arms: tuple[ArmName, ...] = get_args(ArmName)
    """arms to train"""

    def __post_init__(self) -> None:
        OneNetwork.__post_init__(self)
        Projected.__post_init__(self)


def runs(config: CaseStudy) -> list[Run]:
    """A run for each arm."""
    arms = [config.nap(arm) for arm in ARMS if arm.name in config.arms]
    return arm_runs("fig1", arms, continual(config))


PAPER = CaseStudy(
    network="cnn",
    channels=DQN_STYLE,
    width=512,
    images=0,
    tasks=500,  # §3.2
    epochs=20,  # not stated
    learning_rate=1e-4,  # as in §5.1; not stated for this figure
)
SMALL = replace(PAPER, images=1024, batch_size=32, tasks=40, epochs=20, learning_rate=3e-4)
DIGITS = replace(SMALL, data="digits", images=512, network="mlp", width=64, depth=3)
DEMO = replace(DIGITS, tasks=30, learning_rate=1e-3, seeds=4, arms=get_args(ArmName)[:-1])

EXPERIMENT = Experiment(
    name="fig1",
    title="case study: labels drawn anew, over and over (Figure 1)",
    shows="Growing weights end learning with and without LayerNorm; putting them back to their first norm "
    "keeps the performance of a fresh network.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=runs,
    needs={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
    folder="fig1",
)
