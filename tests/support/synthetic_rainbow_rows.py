"""Rows as the Rainbow experiments write them, made up: as the paper tells it (`as_told`), or the opposite.

A learning curve is a function of time, from 0 to 1, to a score on the scale where random play has 0 and a
human 1. Seeds differ by a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from nap.lab.metrics import ATARI57

Row = dict[str, Any]
Curve = Callable[[float], float]  # share of the run → normalised score
SEEDS, POINTS, FRAMES = 5, 20, 5_000_000
GAMES = ("breakout", "pong", "seaquest")
CATCH = (-1.0, 1.0)  # what the worst and the best player of catch score: no human played it


def rising(level: float, middle: float, steepness: float = 20.0) -> Curve:
    """From nothing to `level`, most of it around `middle`."""
    return lambda time: level / (1 + float(np.exp(-steepness * (time - middle))))


def early(level: float) -> Curve:
    """To `level` at once, and then flat."""
    return lambda time: level * (1 - float(np.exp(-15 * time)))


def metrics(time: float, norm: float, rate: float) -> Row:
    """What a row holds beside the score: a norm that grows by a factor, a rate that changes by one."""
    return {
        "episodes": 12,
        "learning_rate": 6.25e-5,
        "effective_rate": 1e-5 * rate**time,
        "weight_norm": 30 * norm**time,
        "parameter_norm": 40 * norm**time,
        "gradient_norm": 0.1,
        "loss": 2.0,
        "linearized_units": 0.1,
        "dead_units": 0.1,
        "feature_rank": 300.0,
    }


def of_layer(layer: str, norm: float, rate: float) -> Row:
    """A noisy layer's means alone do the opposite of both parts together."""
    if layer == "hidden":
        together = {"joint_norm": 3 * norm, "joint_rate": 1e-4 * rate}
        return {"norm": 3 / norm, "effective_rate": 1e-4 / rate, **together}
    return {"norm": 3 * norm, "effective_rate": 1e-4 * rate}


def raw(game: str, score: float) -> float:
    """A normalised score as the game counts it."""
    zero, one = ATARI57.get(game, CATCH)
    return zero + score * (one - zero)


def run(
    keys: Row, curve: Curve, *, norm: float = 1.0, rate: float = 1.0, frames: str = "frames"
) -> Iterator[Row]:
    """The rows of one agent in one game, all seeds, with a row for a layer after each."""
    draws = np.random.default_rng(sum(map(ord, str(sorted(keys.items())))))
    for seed in range(SEEDS):
        factor = 1 + 0.01 * float(draws.normal())
        for point in range(1, POINTS + 1):
            time = point / POINTS
            at = {frames: FRAMES * point // POINTS, "frames": FRAMES * point // POINTS}
            key = {**keys, "seed": seed, **at}
            yield {**key, "score": raw(keys["game"], factor * curve(time)), **metrics(time, norm, rate)}
            for layer in ("conv1", "hidden"):
                yield {**key, "kind": "layer", "layer": layer} | of_layer(layer, norm**time, rate**time)


def fig3(as_told: bool, games: tuple[str, ...] = GAMES) -> Iterator[Row]:
    told: dict[str, tuple[Curve, float, float]] = {  # score, growth of the norm, factor of the effective rate
        "Rainbow": (early(0.8), 4.0, 0.25),
        "LayerNorm": (early(1.0), 4.0, 0.25),
        "NaP": (lambda time: 0.01, 1.0, 1.0),
        "NaP + schedule": (rising(2.0, 0.5), 1.0, 1 / 60),
    }
    opposite: dict[str, tuple[Curve, float, float]] = {
        "Rainbow": (early(0.8), 1.0, 1.0),
        "LayerNorm": (early(1.0), 1.0, 1.0),
        "NaP": (early(1.5), 0.5, 2.0),
        "NaP + schedule": (early(0.5), 1.0, 1.5),
    }
    for (arm, (curve, norm, rate)), game in product((told if as_told else opposite).items(), games):
        yield from run({"experiment": "fig3", "arm": arm, "game": game}, curve, norm=norm, rate=rate)


def suite(as_told: bool, games: tuple[str, ...] = GAMES) -> Iterator[Row]:
    told = {"Rainbow": 0.8, "LayerNorm": 1.0, "NaP": 0.7, "NaP + schedule": 1.4}
    opposite = {"Rainbow": 1.0, "LayerNorm": 0.8, "NaP": 0.9, "NaP + schedule": 0.5}
    for (arm, level), game in product((told if as_told else opposite).items(), games):
        yield from run({"experiment": "fig3", "arm": arm, "game": game}, early(level))


def sequential(as_told: bool, games: tuple[str, ...] = GAMES) -> Iterator[Row]:
    """Two visits to each game; only the second one differs between the two worlds, as the claims say."""
    told = {"Rainbow": 0.1, "LayerNorm": 0.4, "NaP": 1.1, "fresh Rainbow": 0.9}
    opposite = {"Rainbow": 1.0, "LayerNorm": 0.9, "NaP": 0.3, "fresh Rainbow": 0.9}
    for arm, level in (told if as_told else opposite).items():
        cycles = (1,) if arm == "fresh Rainbow" else (1, 2)
        for cycle, (place, game) in product(cycles, enumerate(games)):
            visit = (cycle - 1) * len(games) + place
            keys = {"experiment": "fig5-sequential", "arm": arm, "game": game, "cycle": cycle, "visit": visit}
            first_visit = cycle == 1 and arm != "fresh Rainbow"
            rows = run(keys, early(0.9 if first_visit else level), frames="frames_in_game")
            yield from (row | {"frames": row["frames"] + visit * FRAMES} for row in rows)


def fig6(as_told: bool, games: tuple[str, ...] = GAMES) -> Iterator[Row]:
    """A schedule's end stretches the curve in time; in the opposite world a late end squeezes it."""
    told = {0.25: 0.5, 0.5: 1.2, 0.75: 1.1, 1.0: 1.0}
    opposite = {0.25: 1.5, 0.5: 0.5, 0.75: 1.0, 1.0: 1.0}
    for (end, level), game in product((told if as_told else opposite).items(), games):
        stretch = end if as_told else 1.25 - end
        curve = rising(level, 0.8 * stretch, 12 / stretch)
        keys = {"experiment": "fig6", "arm": f"NaP, ends at {end:g}", "game": game, "end_at": end}
        yield from run(keys, curve)


def minatar(as_told: bool, games: tuple[str, ...] = GAMES) -> Iterator[Row]:
    """As `fig3`; in the opposite world Rainbow needs no LayerNorm."""
    for row in fig3(as_told, games):
        if not as_told and row["arm"] == "Rainbow" and "score" in row:
            time = row["frames"] / FRAMES
            row["score"] = raw(row["game"], early(1.3 + 0.01 * row["seed"])(time))
        yield row | {"experiment": "minatar"}


def ablations(as_told: bool, games: tuple[str, ...] = GAMES) -> Iterator[Row]:
    told = {  # score, factor of the effective rate
        "NaP": (1.0, 1 / 60),
        "NaP, projected rarely": (0.99, 1 / 60),
        "NaP, no offsets": (1.3, 1 / 60),
        "LayerNorm": (1.0, 0.25),
        "LayerNorm, weight decay": (0.4, 0.9),
        "Rainbow": (0.9, 1.0),
        "Rainbow, weight decay": (0.3, 1.0),
    }
    opposite = told | {
        "NaP, projected rarely": (0.5, 1 / 60),
        "NaP, no offsets": (0.6, 1 / 60),
        "LayerNorm, weight decay": (1.2, 0.1),
        "Rainbow, weight decay": (1.1, 1.0),
    }
    for (arm, (level, rate)), game in product((told if as_told else opposite).items(), games):
        yield from run({"experiment": "ablations", "arm": arm, "game": game}, early(level), rate=rate)


def renamed(world: Callable[..., Iterator[Row]], experiment: str) -> Callable[..., Iterator[Row]]:
    """The rows of a world as those of another experiment."""

    def rows(as_told: bool, games: tuple[str, ...] = GAMES) -> Iterator[Row]:
        return (row | {"experiment": experiment} for row in world(as_told, games))

    return rows


WORLDS: Mapping[str, Callable[[bool], Iterator[Row]]] = {
    "fig3": fig3,
    "fig5-sequential": sequential,
    "fig5-suite": suite,
    "fig6": fig6,
    "minatar": minatar,
    "minatar-ends": renamed(fig6, "minatar-ends"),
    "minatar-sequential": renamed(sequential, "minatar-sequential"),
    "ablations": ablations,
}
