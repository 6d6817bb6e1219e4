"""From arms to runs, where every seed of an arm is a run of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from nap.lab.aliases import slug
from nap.lab.experiments.experiment import Run
from nap.lab.loops.population.network_run import NetworkRun

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
    distributed: bool = False,
    together: int = 1,
) -> list[Run]:
    """A run for each arm and each of the config's seeds, or for so many of them `together`.

    How many seeds there are says nothing of one of them, so its settings have the usual number, whatever was
    asked for: more can be added later, in the same folder, as long as the runs that are there stay the same.
    """
    settings = replace(settings, seeds=type(settings).seeds, first_seed=0)
    first = config.first_seed
    whats = [
        NetworkRun(arm, settings, seed, tags, min(together, first + config.seeds - seed))
        for arm in arms
        for seed in range(first, first + config.seeds, together)
    ]
    return [
        Run(
            f"{prefix}{slug(what.arm.name)}-{named_seeds(what.seeds)}",
            what,
            partial(work, what),
            distributed,
            group=f"{prefix}{slug(what.arm.name)}",
        )
        for what in whats
    ]


def named_seeds(seeds: range) -> str:
    """For a folder's name.

    >>> named_seeds(range(2, 3)), named_seeds(range(0, 3))
    ('seed-2', 'seeds-0-2')
    """
    return f"seed-{seeds[0]}" if len(seeds) == 1 else f"seeds-{seeds[0]}-{seeds[-1]}"
