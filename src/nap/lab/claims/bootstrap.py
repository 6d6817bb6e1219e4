"""Confidence intervals over seeds, for three to ten of them rather than for hundreds.

With few seeds the usual percentile bootstrap is much too sure of itself: a resampled mean never leaves the
range of the data, so three seeds cannot give more than 75 %, whatever the level. BCa does not help (it
corrects bias and skew, not this), and the studentised bootstrap is infinite at n = 3, where one resample in
nine has no spread. So the bootstrap gives what it is good at, the standard error of any statistic, and
Student's quantile gives the width that a standard error from n seeds needs; for a mean it is the t interval.

Coverage of 95 % intervals at n = 5, measured (tests/lab/claims/test_bootstrap.py): 95 % for normal data, 94 %
uniform, 91 % log-normal with σ = ½; percentiles: 83 %, 85 % and 79 %.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]  # (draws, seeds, ...) → (draws,)


class Interval(NamedTuple):
    """An estimate and what it may be, given how seeds differ."""

    estimate: float
    low: float
    high: float
    standard_error: float = 0.0
    freedom: int = 1  # degrees of freedom of Student's t

    def beyond(self, bound: float) -> float:
        """One-sided p-value of an estimate that lies so far above `bound` by chance."""
        gap = self.estimate - bound
        if self.standard_error == 0:
            return 0.0 if gap > 0 else 1.0
        return 1 - student_cdf(gap / self.standard_error, self.freedom)


def mean(samples: np.ndarray) -> np.ndarray:
    """The mean over seeds of one number each: (draws, seeds) → (draws,)."""
    return samples.mean(1)


def interval(
    samples: np.ndarray,
    statistic: Statistic = mean,
    *,
    generator: np.random.Generator,
    level: float = 0.95,
    draws: int = 10_000,
    stratified: bool = False,
) -> Interval:
    """`statistic` of the seeds and its confidence interval: estimate ± t · bootstrap standard error.

    The first axis of `samples` is seeds, drawn with replacement; what lies on the other axes (arms, tasks)
    stays together, so arms that share a seed are compared in pairs. `stratified`: the last axis is games, and
    seeds are drawn in each game by itself, since seed 1 of a game has nothing to do with seed 1 of another.

    >>> accuracy = np.array([[0.31, 0.42], [0.28, 0.37], [0.35, 0.47]])   # 3 seeds × (LayerNorm, NaP)
    >>> gain = interval(accuracy[:, 1] - accuracy[:, 0], generator=np.random.default_rng(0))
    >>> print(f"{gain.estimate:.3f} ({gain.low:.2f} to {gain.high:.2f})")
    0.107 (0.07 to 0.14)
    """
    seeds = len(samples)
    if seeds < 2:
        raise ValueError(
            f"an interval over seeds needs at least two of them, and there are {seeds}; run more"
        )
    estimate = float(statistic(samples[None])[0])
    if stratified:
        drawn, freedom = _stratified(samples, statistic, generator, draws)
    else:
        drawn = statistic(samples[generator.integers(seeds, size=(draws, seeds))])
        freedom = seeds - 1
    # Resampling spreads as if divided by n where an unbiased variance divides by n − 1.
    standard_error = float(drawn.std()) * (seeds / (seeds - 1)) ** 0.5
    reach = student_quantile((1 + level) / 2, freedom) * standard_error
    return Interval(estimate, estimate - reach, estimate + reach, standard_error, freedom)


def _stratified(
    samples: np.ndarray, statistic: Statistic, generator: np.random.Generator, draws: int
) -> tuple[np.ndarray, int]:
    """Statistics of draws of seeds within each game, and Satterthwaite's degrees of freedom, rounded down."""
    seeds, games = samples.shape[0], samples.shape[-1]

    def drawn(draws: int, of: list[int]) -> np.ndarray:
        """The statistic with the seeds of these games drawn, and those of the others as they are."""
        taken = np.repeat(samples[None], draws, 0)
        for game in of:
            index = generator.integers(seeds, size=(draws, seeds))
            taken[..., game] = samples[..., game][index]
        return statistic(taken)

    shares = np.array([drawn(max(2, draws // 25), [game]).var() for game in range(games)])
    total = float((shares**2).sum())
    freedom = (seeds - 1) * (float(shares.sum()) ** 2 / total if total > 0 else 1.0)
    return drawn(draws, list(range(games))), max(seeds - 1, int(freedom))


def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t distribution, found on a grid (numpy has none).

    >>> round(student_quantile(0.975, 2), 3), round(student_quantile(0.975, 9), 3)
    (4.303, 2.262)
    """
    theta, below = _student(freedom)
    return float(freedom**0.5 * np.tan(np.interp(probability, below, theta)))


def student_cdf(t: float, freedom: int) -> float:
    """The probability that Student's t is at most `t`.

    >>> round(student_cdf(4.303, 2), 3), round(student_cdf(-2.262, 9), 3)
    (0.975, 0.025)
    """
    theta, below = _student(freedom)
    return float(np.interp(np.arctan(t / freedom**0.5), theta, below))


@cache
def _student(freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles and the distribution function there: with x = √ν tan θ the density is as cos(θ)^(ν−1)."""
    theta = np.linspace(-np.pi / 2, np.pi / 2, 100_001)
    density = np.cos(theta).clip(min=0) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return theta, below / below[-1]
