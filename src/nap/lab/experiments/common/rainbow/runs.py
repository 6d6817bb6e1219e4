"""From variants to runs: the Rainbow experiments differ in their arms, games and settings only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from nap.lab.aliases import slug
from nap.lab.experiments.common.rainbow import RainbowConfig
from nap.lab.experiments.common.runs import named_seeds
from nap.lab.experiments.experiment import Run
from nap.lab.loops.rainbow.atari import GAMES
from nap.lab.loops.rainbow.games import BUILT_IN, MINATAR, require_known
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import AgentRun, RainbowArm
from nap.lab.loops.rainbow.stacked.run import StackedRainbowWork


def single_runs(
    experiment: str, config: RainbowConfig, games: Iterable[str], variants: Sequence[RainbowArm]
) -> list[Run]:
    """A run for each game, variant and seed, or a few seeds; of games that are only tried, one agent."""
    games = tuple(games)
    one_rate = config.tuned_on in games
    return [
        _single(experiment, config, game, variant, seeds, one_rate)
        for game in games
        for variant in (variants[-1:] if config.only_tries(game) else variants)
        for seeds in ([config.seeds_of_runs[0][:1]] if config.only_tries(game) else config.seeds_of_runs)
    ]


def _single(
    experiment: str, config: RainbowConfig, game: str, variant: RainbowArm, seeds: range, one_rate: bool
) -> Run:
    tags: dict[str, Any] = {"experiment": experiment}
    if variant.schedule == "linear":
        tags["end_at"] = variant.end_at
    frames = config.smoke_frames if config.only_tries(game) else config.frames
    variant, settings = config.adapted(variant), config.agent()
    agent = AgentRun(
        variant, settings, (game,), frames, config.intervals, seeds[0], tags=tags, seeds_per_run=len(seeds)
    )
    group = variant.name if one_rate else f"{game} {variant.name}"
    decides = game == config.tuned_on or not one_rate
    return agent_run(f"{game} {variant.name}", agent, group, decides=decides)


def agent_run(name: str, agent: AgentRun, group: str = "", *, decides: bool = True) -> Run:
    """The run of one agent, or of a few seeds; refused here, before any work, if there is no such game.

    Args:
        group: of the runs that `nap tune` finds one learning rate for, on those that decide.
    """
    for game in set(agent.games) - {*BUILT_IN, *MINATAR, *GAMES}:
        require_known(game)

    def start(device: torch.device) -> RainbowWork | StackedRainbowWork:
        agents = agent.agents()
        return RainbowWork(agent, device) if len(agents) == 1 else StackedRainbowWork(agents, device)

    return Run(f"{slug(name)}-{named_seeds(agent.seeds)}", agent, start, group=slug(group), decides=decides)
