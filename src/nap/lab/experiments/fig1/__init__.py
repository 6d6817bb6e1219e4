"""Figure 1, the case study: one network learns new random labels, task after task (§3.2).

Arms: the plain network; with LayerNorm; with LayerNorm and every weight rescaled to its initial norm at each
change of task; with NaP, which does that after each update; NaP with other rules for scales and offsets. Two
more arms start every task from a new initialisation: the accuracy of a network that has lost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nap.lab.experiments.experiment import Experiment, Tuning, arm_names
from nap.lab.loops.population.settings import (
    FRESH,
    FRESH_NO_NORM,
    LAYER_NORM,
    NAP,
    NAP_FREE,
    NAP_JOINT,
    NAP_NO_AFFINE,
    NAP_PULL,
    NAP_WEAK_PULL,
    NO_NORM,
    RESCALED,
    OneNetwork,
    Projected,
    TaskChanges,
)

PAPERS_ARMS = (NO_NORM, LAYER_NORM, RESCALED, NAP, FRESH, FRESH_NO_NORM)
AFFINE_ARMS = (NAP_FREE, NAP_JOINT, NAP_WEAK_PULL, NAP_PULL, NAP_NO_AFFINE)
ARMS = (*PAPERS_ARMS, *AFFINE_ARMS)
if TYPE_CHECKING:
    ArmName = str
else:
    ArmName = Literal[arm_names(ARMS)]
DQN_STYLE = (32, 32, 64, 64)


@dataclass(frozen=True)
class Fig1Config(OneNetwork, Projected, TaskChanges):
    """Settings of Figure 1."""

    arms: tuple[ArmName, ...] = arm_names([*PAPERS_ARMS, NAP_NO_AFFINE])
    """arms to train"""

    def __post_init__(self) -> None:
        for part in (OneNetwork, Projected, TaskChanges):
            part.__post_init__(self)


PAPER = Fig1Config(
    network="cnn",
    channels=DQN_STYLE,
    width=512,
    images=0,
    tasks=500,  # §3.2
    epochs=20,  # not stated
    learning_rate=1e-4,  # as in §5.1; not stated for this figure
)
SMALL = replace(
    PAPER,
    images=1024,
    batch_size=32,
    tasks=40,
    epochs=20,
    learning_rate=3e-4,
    optimizer_state=("reset", "keep"),
)
DIGITS = replace(
    SMALL, data="digits", images=512, network="mlp", width=64, depth=3, optimizer_state=("reset",)
)
DEMO = replace(DIGITS, tasks=30, learning_rate=1e-3, seeds=4, arms=arm_names(PAPERS_ARMS[:-1]))

EXPERIMENT = Experiment(
    name="fig1",
    order=1,
    package=__name__,
    title="case study: new random labels, task after task (Figure 1)",
    shows="Growing weights end learning with and without LayerNorm; rescaling them to their initial norm "
    "keeps the accuracy of a fresh network.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    datasets={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
    tuning=Tuning(metric="accuracy", rates=(1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)),
)
