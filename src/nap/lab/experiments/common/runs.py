"""From arms to runs: one of all seeds at once (`arm_runs`), or one for each seed (`seeded_runs`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import torch

from nap.lab.aliases import slug
from nap.lab.datasets.images import load
from nap.lab.experiments.experiment import Run
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.population.continual_run import ArmRun, ContinualWork
from nap.lab.loops.population.settings import Arm, Continual, OptimizerState

Settings = TypeVar("Settings")


def settings_of(config: Any, kind: Callable[..., Settings]) -> Settings:
    """The part of an experiment's config that determines the rows of one network."""
    return kind(**{field.name: getattr(config, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def seeded_runs(
    config: Any,
    arms: Sequence[Any],
    settings: Any,
    work: Callable[..., Any],
    tags: Mapping[str, Any],
    *,
    prefix: str = "",
    distributed: bool = False,
    seeds_per_run: int = 1,
) -> list[Run]:
    """A run for each arm and each of the config's seeds, or for each `seeds_per_run` of them.

    The stored settings of a network do not depend on the number of seeds, so that more seeds can be added to
    the folder later.
    """
    settings = replace(settings, seeds=type(settings).seeds, first_seed=0)
    first = config.first_seed
    networks = [
        NetworkRun(arm, settings, seed, tags, min(seeds_per_run, first + config.seeds - seed))
        for arm in arms
        for seed in range(first, first + config.seeds, seeds_per_run)
    ]
    return [
        Run(
            f"{prefix}{slug(network.arm.name)}-{named_seeds(network.seeds)}",
            network,
            partial(work, network),
            distributed,
            group=f"{prefix}{slug(network.arm.name)}",
        )
        for network in networks
    ]


def named_seeds(seeds: range) -> str:
    """For a folder's name.

    >>> named_seeds(range(2, 3)), named_seeds(range(0, 3))
    ('seed-2', 'seeds-0-2')
    """
    return f"seed-{seeds[0]}" if len(seeds) == 1 else f"seeds-{seeds[0]}-{seeds[-1]}"


def at_task_changes(
    name: str, states: Sequence[OptimizerState]
) -> Iterator[tuple[str, OptimizerState, dict[str, Any]]]:
    """For each treatment of the optimizer: the run's name, the setting, and its columns in the rows.

    "legacy" keeps the names and rows of runs that are older than the setting.

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
    kind: type[ContinualWork] = ContinualWork,
) -> Run:
    """The run of one arm; `tags` are further columns of its rows."""
    network = ArmRun(arm, config, tags)

    def start(device: torch.device) -> ContinualWork:
        return kind(network, load(config.data, count=config.images or None), device)

    return Run(slug(name), network, start)
