"""What the experiments with Rainbow agents share: settings here, then runs, claims and figures."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from nap.lab.loops.rainbow.atari import GAMES
from nap.lab.loops.rainbow.games import BUILT_IN
from nap.lab.loops.rainbow.settings import AgentConfig, RainbowArm
from nap.validation import check_range as check

EVERY_THIRD = GAMES[::3]  # in the order of the alphabet, as in the paper's appendix on learning rates


@dataclass(frozen=True)
class RainbowConfig(AgentConfig):
    """The settings that all Rainbow experiments share. Those of single games define `rainbow_arms`."""

    frames: int = 200_000_000
    """environment frames of each game"""
    intervals: int = 200
    """rows of each game, at equal distances"""
    smoke_frames: int = 0
    """frames of games that are not built in: one agent tries each of them; 0 trains them as all others"""
    seeds: int = 4
    """seeds (agents) of each arm and game"""
    first_seed: int = 0
    """the first seed"""
    seeds_per_run: int = 1
    """seeds that one run trains together, sharing each update; fastest on a GPU"""
    last_share: float = 0.0
    """final learning rate of schedules, as a share of the peak; 0 for the paper's 1e-6"""
    tuned_on: str = ""
    """game on which nap tune tunes an arm's learning rate for all games; else it tunes on each"""
    noise: Literal["joint", "separate", "free"] = "separate"
    """NaP's norms of noisy layers: one for mean and noise weights, one for each, or noise left free"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("frames", "intervals", "seeds", "seeds_per_run"):
            check(self, name, getattr(self, name), 1)
        check(self, "smoke_frames", self.smoke_frames, 0)
        check(self, "first_seed", self.first_seed, 0)
        check(self, "last_share", self.last_share, 0, 1)

    def agent(self) -> AgentConfig:
        """The agent's own settings among these."""
        return AgentConfig(**{field.name: getattr(self, field.name) for field in fields(AgentConfig)})

    @property
    def seeds_of_runs(self) -> list[range]:
        """The seeds of the agents, run by run."""
        end = self.first_seed + self.seeds
        starts = range(self.first_seed, end, self.seeds_per_run)
        return [range(start, min(start + self.seeds_per_run, end)) for start in starts]

    def adapted(self, variant: RainbowArm) -> RainbowArm:
        """The variant with these settings' policy for noise and end of schedules, as it needs them."""
        if variant.project:
            variant = replace(variant, noise=self.noise)
        return variant if variant.schedule == "constant" else replace(variant, last_share=self.last_share)

    def only_tries(self, game: str) -> bool:
        """Whether this game is here to see that it runs."""
        return self.smoke_frames > 0 and game not in BUILT_IN


Config = TypeVar("Config", bound=RainbowConfig)


def adapt(kind: type[Config], config: RainbowConfig, **changes: Any) -> Config:
    """Settings of another experiment, with the agent and the games of this one."""
    shared = {f.name for f in fields(kind)} & set(vars(config)) - {"arms"}
    return kind(**{name: getattr(config, name) for name in shared} | changes)
