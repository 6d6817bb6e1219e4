"""Aggregates over games: mean, median, interquartile mean and optimality gap, with bootstrap intervals.

Agarwal et al. (2021), whose approach Figure 5 of the paper follows, define them; tests/lab/test_scores.py
compares with their package rliable. The last two axes of `scores` are seeds and games, axes before them stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Aggregate = Callable[[np.ndarray], np.ndarray]  # (..., seeds, games) → (...)


class Percentiles(NamedTuple):
    """The two ends of an interval."""

    low: float
    high: float


def mean(scores: np.ndarray) -> np.ndarray:
    """The mean over games of the mean score over seeds.

    >>> float(mean(np.array([[0.0, 4.0], [1.0, 5.0]])))
    2.5
    """
    return scores.mean(-2).mean(-1)


def median(scores: np.ndarray) -> np.ndarray:
    """The median over games of the mean score over seeds."""
    return np.median(scores.mean(-2), axis=-1)


def iqm(scores: np.ndarray) -> np.ndarray:
    """The interquartile mean: of all seeds and games, without the lowest and highest quarter.

    >>> float(iqm(np.array([[0.0, 2.0], [3.0, 100.0]])))
    2.5
    """
    flat = np.sort(scores.reshape(*scores.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    return flat[..., cut : flat.shape[-1] - cut].mean(-1)


def optimality_gap(scores: np.ndarray, threshold: float = 1.0) -> np.ndarray:
    """The mean amount by which scores, capped at `threshold`, fall short of it.

    >>> float(optimality_gap(np.array([[0.5, 7.0]])))
    0.25
    """
    return threshold - np.minimum(scores, threshold).mean((-2, -1))


AGGREGATES: dict[str, Aggregate] = {
    "mean": mean,
    "median": median,
    "IQM": iqm,
    "optimality gap": optimality_gap,
}


def stratified_interval(
    scores: np.ndarray,
    aggregate: Aggregate,
    *,
    generator: np.random.Generator,
    level: float = 0.95,
    draws: int = 2000,
) -> Percentiles:
    """The percentile bootstrap interval of `aggregate`, with seeds resampled within each game.

    For many games, as in the paper's figure. With few games and seeds it is too narrow; claims use
    `nap.lab.claims.bootstrap.interval`.

    >>> scores = np.random.default_rng(0).normal(1.0, 0.5, size=(4, 57))
    >>> low, high = stratified_interval(scores, iqm, generator=np.random.default_rng(1))
    >>> print(f"{iqm(scores):.2f} ({low:.2f} to {high:.2f})")
    1.01 (0.95 to 1.07)
    """
    if scores.ndim != 2 or not scores.size:
        raise ValueError(f"scores must be an array (seeds, games) with something in it, not {scores.shape}")
    if not np.isfinite(scores).all():
        seed, game = np.argwhere(~np.isfinite(scores))[0]
        raise ValueError(
            f"the score of seed {seed} in game {game} is {scores[seed, game]}; "
            f"leave out seeds or games that were not measured"
        )
    seeds, games = scores.shape
    drawn = scores[generator.integers(seeds, size=(draws, seeds, games)), np.arange(games)]
    low, high = np.quantile(aggregate(drawn), [(1 - level) / 2, (1 + level) / 2])
    return Percentiles(float(low), float(high))
