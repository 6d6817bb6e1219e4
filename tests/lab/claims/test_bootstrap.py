"""Intervals over few seeds: how often they hold the truth, and that seeds are resampled as a whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nap.lab.claims.bootstrap import Interval, interval, mean, student_quantile

REPEATS = 1500  # the standard error of a coverage of 95 % is then 0.6 %
Draw = Callable[[np.random.Generator, int], np.ndarray]


def percentile(samples: np.ndarray, generator: np.random.Generator, draws: int = 400) -> Interval:
    """The textbook bootstrap, to compare with."""
    drawn = mean(samples[generator.integers(len(samples), size=(draws, len(samples)))])
    return Interval(float(samples.mean()), *np.quantile(drawn, [0.025, 0.975]).tolist())


def coverage(method: Callable[..., Interval], draw: Draw, truth: float, seeds: int) -> float:
    generator = np.random.default_rng(0)
    found = [method(draw(generator, seeds), generator=generator, draws=400) for _ in range(REPEATS)]
    return float(np.mean([one.low <= truth <= one.high for one in found]))


def normal(generator: np.random.Generator, seeds: int) -> np.ndarray:
    return generator.normal(size=seeds)


def uniform(generator: np.random.Generator, seeds: int) -> np.ndarray:
    return generator.uniform(size=seeds)


def log_normal(generator: np.random.Generator, seeds: int) -> np.ndarray:
    return np.exp(0.5 * generator.normal(size=seeds))


CASES = [(normal, 0.0), (uniform, 0.5), (log_normal, float(np.exp(0.125)))]


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize(("draw", "truth"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_it_covers_better_than_percentiles(draw: Draw, truth: float, seeds: int) -> None:
    ours, theirs = (coverage(method, draw, truth, seeds) for method in (interval, percentile))
    assert ours > theirs + 0.02
    assert abs(ours - 0.95) < abs(theirs - 0.95)
    assert ours > 0.89  # the worst of them: skewed data


def test_what_is_said_of_five_seeds() -> None:
    """The numbers in the module's docstring."""
    ours = [coverage(interval, draw, truth, 5) for draw, truth in CASES]
    assert ours == pytest.approx([0.95, 0.94, 0.91], abs=0.015)
    theirs = [coverage(percentile, draw, truth, 5) for draw, truth in CASES]
    assert theirs == pytest.approx([0.83, 0.85, 0.79], abs=0.015)


def test_a_ratio_of_means_is_covered_too() -> None:
    """The reason to bootstrap at all: a statistic without a formula for its standard error."""

    def log_ratio(pairs: np.ndarray) -> np.ndarray:
        means = pairs.mean(1)
        return np.log(means[:, 1] / means[:, 0])

    def draw(generator: np.random.Generator, seeds: int) -> np.ndarray:
        shared = generator.normal(size=(seeds, 1))
        return np.array([2.0, 3.0]) + 0.2 * shared + 0.1 * generator.normal(size=(seeds, 2))

    def method(samples: np.ndarray, **options: object) -> Interval:
        return interval(samples, log_ratio, **options)  # type: ignore[arg-type]

    assert coverage(method, draw, float(np.log(1.5)), 5) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("dof", "expected"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (9, 2.26216), (99, 1.98422)]
)
def test_students_quantile(dof: int, expected: float) -> None:
    assert student_quantile(0.975, dof) == pytest.approx(expected, rel=1e-4)
    assert student_quantile(0.025, dof) == pytest.approx(-expected, rel=1e-4)


def test_a_mean_has_the_t_interval() -> None:
    x = np.random.default_rng(1).normal(size=6)
    found = interval(x, generator=np.random.default_rng(0), draws=200_000)
    reach = 2.57058 * x.std(ddof=1) / 6**0.5
    assert found[:3] == pytest.approx((x.mean(), x.mean() - reach, x.mean() + reach), abs=0.01 * reach)


def test_pairs_stay_together() -> None:
    """Seeds differ a hundred times more than the arms do; paired, that does not matter."""
    generator = np.random.default_rng(2)
    seeds = 10 * generator.normal(size=(5, 1))
    arms = seeds + np.array([0.0, 0.1]) + 0.001 * generator.normal(size=(5, 2))

    def gap(samples: np.ndarray) -> np.ndarray:
        return samples[:, :, 1].mean(1) - samples[:, :, 0].mean(1)

    found = interval(arms, gap, generator=np.random.default_rng(0))
    assert 0.09 < found.low < 0.1 < found.high < 0.11


def test_the_generator_decides() -> None:
    x = np.random.default_rng(3).normal(size=5)
    one, same, other = (interval(x, generator=np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one == same
    assert one != other


def test_seeds_that_agree_leave_no_doubt_and_one_seed_leaves_nothing_but() -> None:
    alike = interval(np.full(4, 0.3), generator=np.random.default_rng(0))
    assert alike[:3] == pytest.approx((0.3, 0.3, 0.3))
    with pytest.raises(ValueError, match="needs at least two"):
        interval(np.array([0.3]), generator=np.random.default_rng(0))
