"""Confidence intervals over seeds, for three to ten of them rather than for hundreds.

The bootstrap estimates the standard error of the statistic, and Student's quantile turns it into an interval;
for a mean this is the t interval. The usual percentile bootstrap is too narrow with few seeds: a resampled
mean never leaves the range of the data, so three seeds cannot cover more than 75 %, whatever the level. BCa
corrects bias and skew, not this, and the studentised bootstrap is infinite at n = 3, where one resample in
nine has no variance.

Coverage of 95 % intervals at n = 5, measured (tests/lab/claims/test_bootstrap.py): 95 % for normal data, 94 %
uniform, 91 % log-normal with σ = ½; percentiles: 83 %, 85 % and 79 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]  # (draws, seeds, ...) → (draws,)


class Interval(NamedTuple):
    """An estimate with its confidence interval over seeds."""

    estimate: float
    low: float
    high: float
    standard_error: float = 0.0
    dof: int = 1  # degrees of freedom of Student's t

    def p_above(self, bound: float) -> float:
        """One-sided p-value of the hypothesis that the true value is at most `bound`."""
        gap = self.estimate - bound
        if self.standard_error == 0:
            return 0.0 if gap > 0 else 1.0
        return 1 - student_cdf(gap / self.standard_error, self.dof)


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

    Args:
        samples: seeds first. They are drawn with replacement, and what lies on the other axes (arms, tasks)
            goes with them, so arms that share a seed are compared in pairs.
        stratified: the last axis is games, and seeds are drawn within each game, since seed 1 of one game has
            nothing to do with seed 1 of another.

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
        resampled, dof = _stratified(samples, statistic, generator, draws)
    else:
        resampled = statistic(samples[generator.integers(seeds, size=(draws, seeds))])
        dof = seeds - 1
    # The bootstrap variance divides by n, an unbiased one by n − 1.
    standard_error = float(resampled.std()) * (seeds / (seeds - 1)) ** 0.5
    half_width = student_quantile((1 + level) / 2, dof) * standard_error
    return Interval(estimate, estimate - half_width, estimate + half_width, standard_error, dof)


def _stratified(
    samples: np.ndarray, statistic: Statistic, generator: np.random.Generator, draws: int
) -> tuple[np.ndarray, int]:
    """The statistic of draws within each game, and Satterthwaite's degrees of freedom, rounded down."""
    seeds, games = samples.shape[0], samples.shape[-1]

    def resampled(draws: int, chosen: Iterable[int]) -> np.ndarray:
        """The statistic with the seeds of the chosen games drawn, and those of the others as they are."""
        drawn = np.repeat(samples[None], draws, 0)
        for game in chosen:
            index = generator.integers(seeds, size=(draws, seeds))
            drawn[..., game] = samples[..., game][index]
        return statistic(drawn)

    variances = np.array([resampled(max(2, draws // 25), [game]).var() for game in range(games)])
    squares = float((variances**2).sum())
    dof = (seeds - 1) * (float(variances.sum()) ** 2 / squares if squares > 0 else 1.0)
    return resampled(draws, range(games)), max(seeds - 1, int(dof))


def student_quantile(probability: float, dof: int) -> float:
    """The quantile of Student's t distribution, interpolated on a grid.

    >>> round(student_quantile(0.975, 2), 3), round(student_quantile(0.975, 9), 3)
    (4.303, 2.262)
    """
    theta, cdf = _student(dof)
    return float(dof**0.5 * np.tan(np.interp(probability, cdf, theta)))


def student_cdf(t: float, dof: int) -> float:
    """The probability that Student's t is at most `t`.

    >>> round(student_cdf(4.303, 2), 3), round(student_cdf(-2.262, 9), 3)
    (0.975, 0.025)
    """
    theta, cdf = _student(dof)
    return float(np.interp(np.arctan(t / dof**0.5), theta, cdf))


@cache
def _student(dof: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles and the cumulative distribution there: with x = √ν tan θ the density is as cos(θ)^(ν−1)."""
    theta = np.linspace(-np.pi / 2, np.pi / 2, 100_001)
    density = np.cos(theta).clip(min=0) ** (dof - 1)
    cdf = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return theta, cdf / cdf[-1]
