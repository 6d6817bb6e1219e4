"""Random strings, data set after data set: does a transformer keep memorising them? (Appendix C.3)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from nap.lab.aliases import slug
from nap.lab.experiments.arm_runs import at_task_changes
from nap.lab.experiments.experiment import Experiment, Run, Tuning
from nap.lab.experiments.seeded_runs import seeded_runs, settings_of
from nap.lab.loops.language.arms import (
    BASELINE,
    NAP,
    NAP_NO_SCALE,
    NAP_RMS,
    NORM_ONLY,
    NORM_ONLY_RMS,
    with_weight_decay,
)
from nap.lab.loops.language.settings import MemorizationConfig, MemorizationRunConfig
from nap.lab.loops.language.string_run import MemorizationWork
from nap.lab.loops.population.settings import TaskChanges
from nap.validation import check_range as check

ARMS = (BASELINE, NORM_ONLY, NAP, NAP_NO_SCALE, NORM_ONLY_RMS, NAP_RMS)
ArmName = Literal["baseline", "norm only", "NaP", "NaP, no scale", "norm only, RMSNorm", "NaP, RMSNorm"]
PAPERS_ARMS = get_args(ArmName)[:4]


@dataclass(frozen=True)
class Strings(MemorizationConfig, TaskChanges):
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


def runs(config: Strings) -> list[Run]:
    """A run for each treatment of the optimizer, arm and seed."""
    arms = [arm for arm in ARMS if arm.name in config.arms] + [
        with_weight_decay(d) for d in config.weight_decays
    ]
    tags = {"experiment": "strings", "chance": 1 / config.vocabulary}
    settings = vars(settings_of(config, MemorizationConfig))
    found: list[Run] = []
    for name, state, more in at_task_changes("", config.optimizer_state):
        one = MemorizationRunConfig(**settings, optimizer_state=state)
        prefix = f"{slug(name)}-" if name else ""
        found += seeded_runs(config, arms, one, MemorizationWork, tags | more, prefix=prefix)
    return found


PAPER = Strings(clip=1.0)  # as in the language model; the paper does not say
SMALL = replace(PAPER, strings=256, length=128, tasks=20, steps=500)
DEMO = Strings(
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
    title="random strings, data set after data set, memorised by a transformer (Appendix C.3)",
    shows="A plain transformer memorises later strings less well; weight projection or weight decay keeps it "
    "able to learn.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=runs,
    needs={"demo": "", "small": "", "paper": ""},
    folder="strings",
    tuning=Tuning(metric="accuracy", rates=(5e-4, 1e-3, 2e-3)),
)
