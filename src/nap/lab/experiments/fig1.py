"""Figure 1, the case study: one network learns new random labels, task after task (§3.2).

Arms: the plain network; with LayerNorm; with LayerNorm and every weight rescaled to its initial norm at each
change of task; with NaP, which does that after each update; NaP with other rules for scales and offsets. Two
more arms start every task from a new initialisation: the accuracy of a network that has lost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from nap.lab.aliases import slug
from nap.lab.experiments.arm_runs import arm_run, at_task_changes
from nap.lab.experiments.experiment import Experiment, Run, Tuning
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
    Arm,
)
from nap.lab.loops.population.settings import OneNetwork, OptimizerState, Projected, TaskChanges, continual

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
class CaseStudy(OneNetwork, Projected, TaskChanges):
    """Settings of Figure 1."""

    arms: tuple[ArmName, ...] = (*PAPERS_ARMS, "NaP, no affine")
    """arms to train"""

    def __post_init__(self) -> None:
        for part in (OneNetwork, Projected, TaskChanges):
            part.__post_init__(self)


def runs(config: CaseStudy) -> list[Run]:
    """A run for each arm and each treatment of the optimizer at a change of task."""
    return [
        _run(config, arm, name, state, tags)
        for arm in (*ARMS, *AFFINE_ARMS)
        if arm.name in config.arms
        for name, state, tags in at_task_changes(arm.name, config.optimizer_state)
    ]


def _run(config: CaseStudy, arm: Arm, name: str, state: OptimizerState, tags: Mapping[str, str]) -> Run:
    twin = _same_rule(config) if arm is NAP and state != "legacy" else None
    arm = replace(twin, name=arm.name) if twin else arm if arm in AFFINE_ARMS else config.nap(arm)
    if arm.project == "step":
        arm = replace(arm, output=config.output)
    # an arm with a rule of its own says all of it: which rule is NaP's default changes no stored run
    by_settings = arm.name == NAP.name and twin is None
    rule = {} if by_settings or state == "legacy" else {"affine": NAP_PULL.affine, "decay": NAP_PULL.decay}
    settings = continual(config, optimizer_state=state, **rule)
    run = arm_run(name, arm, settings, {"experiment": "fig1", **tags})
    if twin is None:
        return run
    return replace(run, group=slug(f"{twin.name}, {state}"), decides=twin.name not in config.arms)


def _same_rule(config: CaseStudy) -> Arm | None:
    """The arm that has NaP's rule for scales and offsets by name: both share a tuned rate."""
    for arm in AFFINE_ARMS:
        if arm.learnable and arm.affine == config.affine and arm.decay in (None, config.decay):
            return arm
    return None


PAPER = CaseStudy(
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

EXPERIMENT = Experiment(
    name="fig1",
    title="case study: new random labels, task after task (Figure 1)",
    shows="Growing weights end learning with and without LayerNorm; rescaling them to their initial norm "
    "keeps the accuracy of a fresh network.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=runs,
    needs={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
    folder="fig1",
    tuning=Tuning(metric="accuracy", rates=(1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)),
)
