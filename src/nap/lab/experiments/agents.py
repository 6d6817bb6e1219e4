"""From variants to runs: the Rainbow experiments differ in their arms, games and settings only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from nap.lab.experiments.arm_runs import slug
from nap.lab.experiments.experiment import Run
from nap.lab.rainbow.atari import GAMES
from nap.lab.rainbow.games import BUILT_IN, require_known
from nap.lab.rainbow.run import RainbowRun
from nap.lab.rainbow.settings import Agent, AgentRun
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
    """frames of games other than the built-in ones, if those are only to be tried, by one agent; or 0"""
    seeds: int = 4
    """agents of each arm and game; seeds count from 0"""
    noise: Literal["joint", "separate", "free"] = "separate"
    """NaP's noisy layers: one norm for means and noise together, one for each, or the noise left free"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("frames", "intervals", "seeds"):
            check(self, name, getattr(self, name), 1)
        check(self, "smoke", self.smoke, 0)

    def agent(self) -> Agent:
        """The agent's own settings among these."""
        return Agent(**{field.name: getattr(self, field.name) for field in fields(Agent)})

    def projected(self, variant: Variant) -> Variant:
        """The variant with these settings' policy for noise, where it has a use for one."""
        return replace(variant, noise=self.noise) if variant.project else variant

    def only_tries(self, game: str) -> bool:
        """Whether this game is here to see that it runs."""
        return self.smoke > 0 and game not in BUILT_IN


def single_runs(
    experiment: str, config: Playing, games: Iterable[str], variants: Sequence[Variant]
) -> list[Run]:
    """A run for each game, variant and seed; of games that are only tried, one run."""
    return [
        _single(experiment, config, game, variant, seed)
        for game in games
        for variant in (variants[-1:] if config.only_tries(game) else variants)
        for seed in range(1 if config.only_tries(game) else config.seeds)
    ]


def _single(experiment: str, config: Playing, game: str, variant: Variant, seed: int) -> Run:
    tags: dict[str, Any] = {"experiment": experiment}
    if variant.schedule == "linear":
        tags["end_at"] = variant.end_at
    frames = config.smoke if config.only_tries(game) else config.frames
    variant, agent = config.projected(variant), config.agent()
    what = AgentRun(variant, agent, (game,), frames, config.intervals, seed, tags=tags)
    return agent_run(f"{game} {variant.name} seed {seed}", what)


def agent_run(name: str, what: AgentRun) -> Run:
    """The run of one agent; refused here, before any work, if there is no such game."""
    for game in set(what.games) - {*BUILT_IN, *GAMES}:
        require_known(game)

    def start(device: torch.device) -> RainbowRun:
        return RainbowRun(what, device)

    return Run(slug(name), what, start)
