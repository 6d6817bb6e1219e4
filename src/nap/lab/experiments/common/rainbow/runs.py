"""The runs of Rainbow experiments, which differ in their arms, games and settings only."""

from __future__ import annotations

from typing import Any

import torch

from nap.lab.aliases import slug
from nap.lab.experiments.common.runs import named_seeds
from nap.lab.experiments.experiment import Run
from nap.lab.loops.rainbow.atari import GAMES
from nap.lab.loops.rainbow.games import BUILT_IN, MINATAR, require_known
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import AgentRun, RainbowArm
from nap.lab.loops.rainbow.stacked.run import StackedRainbowWork


def runs(config: Any, experiment: str) -> list[Run]:
    """A run for each game, each of the config's `rainbow_arms()` and each seed, or a few seeds.

    Games that are only tried have one agent.
    """
    arms = config.rainbow_arms()
    return [
        _run(experiment, config, game, arm, seeds)
        for game in config.games
        for arm in (arms[-1:] if config.only_tries(game) else arms)
        for seeds in ([config.seeds_of_runs[0][:1]] if config.only_tries(game) else config.seeds_of_runs)
    ]


def _run(experiment: str, config: Any, game: str, arm: RainbowArm, seeds: range) -> Run:
    tags: dict[str, Any] = {"experiment": experiment}
    if arm.schedule == "linear":
        tags["end_at"] = arm.end_at
    frames = config.smoke_frames if config.only_tries(game) else config.frames
    arm, settings = config.adapted(arm), config.agent()
    agent = AgentRun(
        arm, settings, (game,), frames, config.intervals, seeds[0], tags=tags, seeds_per_run=len(seeds)
    )
    one_rate = config.tuned_on in config.games
    group = arm.name if one_rate else f"{game} {arm.name}"
    decides = game == config.tuned_on or not one_rate
    return agent_run(f"{game} {arm.name}", agent, group, decides=decides)


def agent_run(name: str, agent: AgentRun, group: str = "", *, decides: bool = True) -> Run:
    """The run of one agent, or of a few seeds; ValueError if there is no such game.

    Args:
        group: the runs for which `nap tune` finds one learning rate, on those that decide.
    """
    for game in set(agent.games) - {*BUILT_IN, *MINATAR, *GAMES}:
        require_known(game)

    def start(device: torch.device) -> RainbowWork | StackedRainbowWork:
        agents = agent.agents()
        return RainbowWork(agent, device) if len(agents) == 1 else StackedRainbowWork(agents, device)

    return Run(f"{slug(name)}-{named_seeds(agent.seeds)}", agent, start, group=slug(group), decides=decides)
