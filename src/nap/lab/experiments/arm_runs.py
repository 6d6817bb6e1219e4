"""From arms to runs: the continual experiments differ in their arms and settings only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from nap.lab.aliases import slug
from nap.lab.datasets.images import load
from nap.lab.experiments.experiment import Run
from nap.lab.loops.population.arms import Arm
from nap.lab.loops.population.continual import ArmRun, ContinualRun
from nap.lab.loops.population.settings import Continual, OptimizerState


def at_task_changes(
    name: str, states: Sequence[OptimizerState]
) -> Iterator[tuple[str, OptimizerState, dict[str, Any]]]:
    """For each treatment of the optimizer: a run's name, the setting, and what its rows say of it.

    Names and rows of "legacy" are those of runs that were made before there was the setting.

    >>> list(at_task_changes("NaP", ["reset", "legacy"]))
    [('NaP, reset', 'reset', {'optimizer_state': 'reset'}), ('NaP', 'legacy', {})]
    """
    for state in states:
        if state == "legacy":
            yield name, state, {}
        else:
            yield f"{name}, {state}", state, {"optimizer_state": state}


def arm_runs(experiment: str, arms: Sequence[Arm], config: Continual) -> list[Run]:
    """A run for each arm, all with the same settings."""
    return [arm_run(arm.name, arm, config, {"experiment": experiment}) for arm in arms]


def arm_run(
    name: str,
    arm: Arm,
    config: Continual,
    tags: Mapping[str, Any],
    kind: type[ContinualRun] = ContinualRun,
) -> Run:
    """The run of one arm; `tags` are more fields of each of its rows."""
    what = ArmRun(arm, config, tags)

    def start(device: torch.device) -> ContinualRun:
        return kind(what, load(config.data, count=config.images or None), device)

    return Run(slug(name), what, start)
