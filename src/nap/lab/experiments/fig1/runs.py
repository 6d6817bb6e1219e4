"""The runs of Figure 1: one for each arm and treatment of the optimizer at a change of task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nap.lab.aliases import slug
from nap.lab.experiments.common.runs import arm_run, at_task_changes
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.fig1 import AFFINE_ARMS, ARMS, Fig1Config
from nap.lab.loops.population.settings import NAP, NAP_PULL, Arm, OptimizerState, continual


def runs(config: Fig1Config) -> list[Run]:
    """A run for each arm and each treatment of the optimizer at a change of task."""
    return [
        _run(config, arm, name, state, tags)
        for arm in ARMS
        if arm.name in config.arms
        for name, state, tags in at_task_changes(arm.name, config.optimizer_state)
    ]


def _run(config: Fig1Config, arm: Arm, name: str, state: OptimizerState, tags: Mapping[str, str]) -> Run:
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


def _same_rule(config: Fig1Config) -> Arm | None:
    """The arm that has NaP's rule for scales and offsets by name: both share a tuned rate."""
    for arm in AFFINE_ARMS:
        if arm.learnable and arm.affine == config.affine and arm.decay in (None, config.decay):
            return arm
    return None
