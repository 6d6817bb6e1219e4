"""From variants to runs: the Rainbow experiments differ in their arms, games and settings only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch

from nap.lab.experiments.arm_runs import slug
from nap.lab.experiments.experiment import Run
from nap.lab.rainbow.atari import GAMES
from nap.lab.rainbow.games import BUILT_IN
from nap.lab.rainbow.run import AgentRun, RainbowRun
from nap.lab.rainbow.settings import Agent
from nap.lab.rainbow.variants import Variant
from nap.methods.contract import check_range as check

EVERY_THIRD = GAMES[::3]  # in the order of the alphabet, as in the paper's appendix on learning rates


@dataclass(frozen=True)
class Playing(Agent):
    """What all Rainbow experiments have in common."""

    frames: int = 200_000_000
    """frames of each game"""
    intervals: int = 200
    """rows of each game: scores, norms, rates, units and rank, at equal distances"""
    smoke: int = 0
    """frames of games other than the built-in ones, if those are only to be tried; 0 plays them as long"""
    seeds: int = 4
    """agents of each arm and game; seeds count from 0"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("frames", "intervals", "seeds"):
            check(self, name, getattr(self, name), 1)
        check(self, "smoke", self.smoke, 0)

    def agent(self) -> Agent:
        """The agent's own settings among these."""
        return Agent(**{field.name: getattr(self, field.name) for field in fields(Agent)})

    def frames_of(self, game: str) -> int:
        return self.smoke if self.smoke and game not in BUILT_IN else self.frames


def single_runs(
    experiment: str, config: Playing, games: Iterable[str], variants: Iterable[Variant], **tags: Any
) -> list[Run]:
    """A run for each game, variant and seed."""
    return [
        agent_run(
            f"{game} {variant.name} seed {seed}",
            AgentRun(
                variant,
                config.agent(),
                (game,),
                config.frames_of(game),
                config.intervals,
                seed,
                tags={"experiment": experiment, **tags},
            ),
        )
        for game in games
        for variant in variants
        for seed in range(config.seeds)
    ]


def agent_run(name: str, what: AgentRun) -> Run:
    """The run of one agent."""

    def start(device: torch.device) -> RainbowRun:
        return RainbowRun(what, device)

    return Run(slug(name), what, start)
