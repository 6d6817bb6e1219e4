"""Confidence intervals over several games, where each game's seeds are runs of their own.

Seed 3 in Pong and seed 3 in Boxing share nothing but a number, so seeds are drawn anew within each game
(Agarwal et al. 2021). Where one agent plays all games, its seeds go together: `bootstrap.interval`.

As there, the bootstrap gives the standard error and Student's quantile the width that it needs. Three seeds
in each of three games say more than three: the degrees of freedom are those of Welch and Satterthwaite, from
the part of the variance that each game brings. Measured on normal data (tests/test_strata.py), 3 seeds in
each of 3 games: 95 % intervals hold the truth in 96 to 98 % of cases, at three quarters of the width that
seeds drawn together give where games vary alike, and nearly all of it where one game decides.
"""

from __future__ import annotations

import numpy as np

from nap.lab.claims.bootstrap import Interval, Statistic, student_quantile

FOR_FREEDOM = 500  # draws for the part of a game


def stratified(
    samples: np.ndarray,
    statistic: Statistic,
    *,
    generator: np.random.Generator,
    level: float = 0.95,
    draws: int = 10_000,
) -> Interval:
    """`statistic` of samples (seeds, ..., games) and its interval; all but seeds and games stays together.

    >>> scores = np.random.default_rng(0).normal(size=(3, 5))
    >>> found = stratified(scores, lambda drawn: drawn.mean((1, 2)), generator=np.random.default_rng(0))
    >>> bool(found.low < found.estimate < found.high)
    True
    """
    seeds, games = len(samples), samples.shape[-1]
    if seeds < 2:
        raise ValueError(
            f"an interval over seeds needs at least two of them, and there are {seeds}; run more"
        )
    estimate = float(statistic(samples[None])[0])

    def variance(drawn_in: slice, count: int) -> float:
        index = np.broadcast_to(np.arange(seeds)[:, None], (count, seeds, games)).copy()
        index[..., drawn_in] = generator.integers(seeds, size=index[..., drawn_in].shape)
        return float(statistic(_drawn(samples, index)).var()) * seeds / (seeds - 1)

    error = variance(slice(None), draws) ** 0.5
    parts = np.array([variance(slice(game, game + 1), FOR_FREEDOM) for game in range(games)])
    squares = float((parts**2).sum())
    freedom = (seeds - 1) * float(parts.sum()) ** 2 / squares if squares else seeds - 1
    reach = student_quantile((1 + level) / 2, max(seeds - 1, int(freedom))) * error
    return Interval(estimate, estimate - reach, estimate + reach)


def _drawn(samples: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The samples with these seeds in each game: index (draws, seeds, games) → (draws, seeds, ..., games)."""
    between = [1] * (samples.ndim - 2)
    index = index.reshape(*index.shape[:2], *between, index.shape[-1])
    places = np.indices(samples.shape[1:], sparse=True)
    return samples[(index, *places)]
