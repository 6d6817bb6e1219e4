"""The runs of Figure 5 (left): a sequence for each continual arm, a game for each fresh agent."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from nap.lab.experiments.common.rainbow.runs import agent_run
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.fig5_sequential import CONTINUAL, FRESH, Fig5SequentialConfig
from nap.lab.loops.rainbow.games import BUILT_IN
from nap.lab.loops.rainbow.settings import AgentRun, Changes, RainbowArm


def runs(config: Fig5SequentialConfig, experiment: str = "fig5-sequential") -> list[Run]:
    """A run for each continual arm and seed, and for each fresh agent's game and seed."""
    continual = [v for v in CONTINUAL if v.name in config.arms]
    sequence = config.games * config.cycles
    run = partial(_run, experiment, config)
    found = [run(variant, sequence, seeds) for variant in continual for seeds in config.seeds_of_runs]
    if FRESH.name in config.arms:
        games = dict.fromkeys(config.games)
        found += [run(FRESH, (game,), seeds) for game in games for seeds in config.seeds_of_runs]
    return found


def _run(
    experiment: str, config: Fig5SequentialConfig, variant: RainbowArm, games: tuple[str, ...], seeds: range
) -> Run:
    changes = Changes(config.new_replay, config.new_target)
    tags: dict[str, Any] = {"experiment": experiment}
    if len(games) == 1:
        tags |= {"visit": config.games.index(games[0]), "cycle": 1}
    agent = AgentRun(
        replace(config.adapted(variant), decay=config.decay),
        config.agent(),
        games,
        config.frames,
        config.intervals,
        seeds[0],
        changes=changes,
        full_actions=not set(config.games) <= set(BUILT_IN),  # one network for all of them
        tags=tags,
        seeds_per_run=len(seeds),
    )
    where = f"{games[0]} " if len(games) == 1 else ""
    return agent_run(f"{where}{variant.name}", agent, f"{where}{variant.name}")
