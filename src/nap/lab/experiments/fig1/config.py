"""Settings of fig1 at three scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from nap.lab.loops.population.arms import (
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
)
from nap.lab.loops.population.settings import OneNetwork, Projected, TaskChanges

ARMS = (NO_NORM, LAYER_NORM, RESCALED, NAP, FRESH, FRESH_NO_NORM)
AFFINE_ARMS = (NAP_FREE, NAP_JOINT, NAP_WEAK_PULL, NAP_PULL, NAP_NO_AFFINE)
ArmName = Literal[
    "no norm",
    "LayerNorm",
    "LayerNorm, rescaled each task",
    "NaP",
    "fresh",
    "fresh, no norm",
    "NaP, affine free",
    "NaP, affine joint",
    "NaP, affine pulled 1e-4",
    "NaP, affine pulled 1e-3",
    "NaP, no affine",
]
PAPERS_ARMS = get_args(ArmName)[: len(ARMS)]
DQN_STYLE = (32, 32, 64, 64)


@dataclass(frozen=True)
class Fig1Config(OneNetwork, Projected, TaskChanges):
    """Settings of Figure 1."""

    arms: tuple[ArmName, ...] = (*PAPERS_ARMS, "NaP, no affine")
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
DEMO = replace(DIGITS, tasks=30, learning_rate=1e-3, seeds=4, arms=PAPERS_ARMS[:-1])
