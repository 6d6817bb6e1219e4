"""Random strings, data set after data set: does a transformer keep memorising them? (Appendix C.3)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nap.lab.experiments.experiment import Experiment, Tuning, arm_names
from nap.lab.loops.language.settings import (
    BASELINE,
    NAP,
    NAP_NO_SCALE,
    NAP_RMS,
    NORM_ONLY,
    NORM_ONLY_RMS,
    MemorizationConfig,
)
from nap.lab.loops.population.settings import TaskChanges
from nap.validation import check_range as check

ARMS = (BASELINE, NORM_ONLY, NAP, NAP_NO_SCALE, NORM_ONLY_RMS, NAP_RMS)
if TYPE_CHECKING:
    ArmName = str
else:
    ArmName = Literal[arm_names(ARMS)]
PAPERS_ARMS = arm_names(ARMS[:4])


@dataclass(frozen=True)
class StringsConfig(MemorizationConfig, TaskChanges):
    """Settings of the random strings."""

    arms: tuple[ArmName, ...] = PAPERS_ARMS
    """arms to train"""
    weight_decays: tuple[float, ...] = (0.01, 0.1, 1.0)
    """more arms: the baseline with these strengths of AdamW's weight decay"""

    def __post_init__(self) -> None:
        MemorizationConfig.__post_init__(self)
        TaskChanges.__post_init__(self)
        for strength in self.weight_decays:
            check(self, "weight_decays", strength, 0)


PAPER = StringsConfig(clip=1.0)  # as in the language model; the paper does not say
SMALL = replace(PAPER, strings=256, length=128, tasks=20, steps=500)
DEMO = StringsConfig(
    blocks=2,
    heads=2,
    width=32,
    vocabulary=16,
    strings=64,
    length=17,
    tasks=12,
    steps=60,
    batch_size=32,
    learning_rate=1e-2,
    weight_decays=(0.1, 1.0),
)

EXPERIMENT = Experiment(
    name="strings",
    order=19,
    package=__name__,
    title="random strings, data set after data set, memorised by a transformer (Appendix C.3)",
    shows="A plain transformer memorises later strings less well; weight projection or weight decay keeps it "
    "able to learn.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    tuning=Tuning(metric="accuracy", rates=(5e-4, 1e-3, 2e-3)),
)
