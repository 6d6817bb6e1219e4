"""Intervals over games whose seeds are runs of their own: how often they hold the truth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from nap.lab.claims.bootstrap import Interval, Statistic, interval
from nap.lab.metrics.aggregate import iqm

REPEATS = 600
SEEDS, GAMES = 3, 3
stratified = partial(interval, stratified=True)


def mean(drawn: np.ndarray) -> np.ndarray:
    return drawn.mean((1, 2))


def found(method: Callable[..., Interval], statistic: Statistic, spreads: np.ndarray) -> list[Interval]:
    """Of normal scores around zero, with a spread for each game."""
    generator = np.random.default_rng(0)
    samples = (spreads * generator.normal(size=(SEEDS, GAMES)) for _ in range(REPEATS))
    return [method(one, statistic, generator=generator, draws=400) for one in samples]


def coverage(intervals: list[Interval]) -> float:
    return float(np.mean([one.low <= 0 <= one.high for one in intervals]))


def width(intervals: list[Interval]) -> float:
    return float(np.mean([one.high - one.low for one in intervals]))


@pytest.mark.parametrize("spreads", [(1.0, 1.0, 1.0), (3.0, 1.0, 0.1)], ids=["alike", "one decides"])
@pytest.mark.parametrize("statistic", [mean, iqm], ids=["mean", "IQM"])
def test_it_holds_the_truth_as_often_as_it_says(statistic: Statistic, spreads: tuple[float, ...]) -> None:
    assert 0.94 < coverage(found(stratified, statistic, np.array(spreads))) < 0.99


def test_it_is_narrower_where_seeds_are_drawn_in_each_game() -> None:
    alike = np.ones(GAMES)
    assert width(found(stratified, mean, alike)) < 0.85 * width(found(interval, mean, alike))


def test_one_game_is_as_without_games() -> None:
    samples = np.random.default_rng(0).normal(size=(5, 1))
    ours = stratified(samples, mean, generator=np.random.default_rng(1))
    theirs = interval(samples, mean, generator=np.random.default_rng(1))
    assert tuple(ours) == pytest.approx(tuple(theirs), rel=0.03)  # other draws


def test_arms_that_share_a_seed_stay_together_within_a_game() -> None:
    """A gap that is the same in every seed of a game has no spread, whatever the scores do."""
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(4, 1, 3))
    pair = np.concatenate([scores + 1, scores], axis=1)  # (seeds, agents, games)
    one = stratified(pair, lambda drawn: (drawn[:, :, 0] - drawn[:, :, 1]).mean((1, 2)), generator=generator)
    assert one[:3] == pytest.approx((1.0, 1.0, 1.0))
