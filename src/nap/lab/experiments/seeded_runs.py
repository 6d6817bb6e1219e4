"""From arms to runs, where every seed of an arm is a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from nap.lab.experiments.arm_runs import slug
from nap.lab.experiments.experiment import Run
from nap.lab.training.network_run import NetworkRun

Settings = TypeVar("Settings")


def settings_of(config: Any, kind: Callable[..., Settings]) -> Settings:
    """Of an experiment's settings, those that determine the rows of one network."""
    return kind(**{field.name: getattr(config, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def seeded_runs(
    config: Any,
    arms: Sequence[Any],
    settings: Any,
    work: Callable[..., Any],
    tags: Mapping[str, Any],
    *,
    prefix: str = "",
    spreads: bool = False,
) -> list[Run]:
    """A run for each arm and each of the config's seeds.

    How many seeds there are says nothing of one of them, so its settings have the usual number, whatever was
    asked for: more can be added later, in the same folder.
    """
    settings = replace(settings, seeds=type(settings).seeds)
    whats = [NetworkRun(arm, settings, seed, tags) for arm in arms for seed in range(config.seeds)]
    return [
        Run(f"{prefix}{slug(what.arm.name)}-seed-{what.seed}", what, partial(work, what), spreads)
        for what in whats
    ]
