"""Figure 5, left: one Rainbow agent for a sequence of Atari games, played twice (§5.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from nap.lab.experiments import fig3
from nap.lab.experiments.agents import Playing, agent_run
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.loops.rainbow.games import BUILT_IN
from nap.lab.loops.rainbow.settings import AgentRun, Changes
from nap.lab.loops.rainbow.variants import LAYER_NORM, NAP, RAINBOW, Variant
from nap.validation import check_range as check

CONTINUAL = tuple(
    replace(variant, schedule="cosine", affine="decay" if variant.project else "free")
    for variant in (RAINBOW, LAYER_NORM, NAP)
)
FRESH = replace(CONTINUAL[0], name="fresh Rainbow")
ArmName = Literal["Rainbow", "LayerNorm", "NaP", "fresh Rainbow"]
# The first five could be confirmed as those of Abbas et al.; the other five are our assumption.
TEN = (
    "alien", "atlantis", "boxing", "breakout", "centipede",
    "demon_attack", "gopher", "krull", "pong", "seaquest",
)  # fmt: skip


@dataclass(frozen=True)
class Sequence(Playing, Changes):
    """Settings of Figure 5 (left)."""

    games: tuple[str, ...] = TEN
    """games in the order in which they are played: Atari ROM names, or catch, which is built in"""
    cycles: int = 2
    """how often the sequence is played"""
    arms: tuple[ArmName, ...] = get_args(ArmName)
    """arms to train"""
    decay: float = 1e-3
    """NaP: how far scales and offsets are pulled back at each update"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "cycles", self.cycles, 1)
        check(self, "decay", self.decay, 0, 1)


def runs(config: Sequence, experiment: str = "fig5-sequential") -> list[Run]:
    """A run for each continual arm and seed, and for each fresh agent's game and seed."""
    continual = [v for v in CONTINUAL if v.name in config.arms]
    sequence = config.games * config.cycles
    run = partial(_run, experiment, config)
    found = [run(variant, sequence, seeds) for variant in continual for seeds in config.seeds_of_runs]
    if FRESH.name in config.arms:
        games = dict.fromkeys(config.games)
        found += [run(FRESH, (game,), seeds) for game in games for seeds in config.seeds_of_runs]
    return found


def _run(experiment: str, config: Sequence, variant: Variant, games: tuple[str, ...], seeds: range) -> Run:
    changes = Changes(config.new_replay, config.new_target)
    tags: dict[str, Any] = {"experiment": experiment}
    if len(games) == 1:
        tags |= {"visit": config.games.index(games[0]), "cycle": 1}
    what = AgentRun(
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
    return agent_run(f"{where}{variant.name}", what, f"{where}{variant.name}")


PAPER = Sequence(frames=20_000_000, intervals=40)
SMALL = replace(
    PAPER,
    games=("boxing", "breakout", "pong"),
    frames=1_000_000,
    intervals=10,
    lanes=16,
    replay=250_000,
    seeds=3,
)
_tiny = {
    name: value for name, value in vars(fig3.DEMO).items() if name not in ("games", "arms", "end_at", "smoke")
}
DEMO = Sequence(**{**_tiny, "frames": 3_000, "intervals": 6}, games=("catch", "catch-mirrored"))

EXPERIMENT = Experiment(
    name="fig5-sequential",
    title="one Rainbow agent for a sequence of Atari games, played twice (Figure 5, left)",
    shows="On its second visit to each game an agent with NaP learns like a freshly initialised one; without "
    "NaP it does not.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=runs,
    needs={"demo": "", "small": "", "paper": ""},
    folder="fig5-sequential",
)
