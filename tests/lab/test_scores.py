"""Human-normalised scores and aggregates over games: the published table, and agreement with rliable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from nap.lab.metrics import (
    AGGREGATES,
    ATARI57,
    human_normalised,
    iqm,
    mean,
    median,
    optimality_gap,
    reference,
    stratified_interval,
)

# What rliable 1.2.0 makes of these scores, in an environment of its own with pandas 2.3.3 and numpy 2.4.6:
# points by metrics.aggregate_*, intervals by library.get_interval_estimates(..., reps=50000) with
# RandomState(0). With RandomState(1) the ends of its intervals differ by at most 0.0015.
SCORES = np.array(
    [
        [0.131, 1.712, 0.447, 2.518, -0.092, 0.871, 0.303],
        [0.352, 1.234, 0.918, 3.107, 0.041, 0.654, 0.729],
        [0.208, 2.263, 0.615, 1.436, 0.214, 1.083, 0.146],
    ]
)
RLIABLE = {  # point, low, high
    "mean": (0.8995238095238095, 0.752570238095238, 1.0414785714285717),
    "median": (0.66, 0.447, 0.8170000000000001),
    "IQM": (0.6745454545454546, 0.5727272727272728, 0.7972727272727272),
    "optimality gap": (0.4029999999999999, 0.3404273809523811, 0.46219047619047615),
}
BOOTSTRAP_ERROR = 0.004

matrices = arrays(
    np.float64,
    st.tuples(st.integers(1, 5), st.integers(1, 6)),
    elements=st.floats(-5, 50, allow_subnormal=False),
)
any_aggregate = st.sampled_from(sorted(AGGREGATES))


def test_there_are_57_games_and_humans_beat_random_play() -> None:
    assert len(ATARI57) == 57
    assert [game for game, scores in ATARI57.items() if scores.human <= scores.random] == []
    assert list(ATARI57) == sorted(ATARI57)


def test_games_are_spelled_as_ale_spells_them() -> None:
    from ale_py import roms

    assert set(ATARI57) - set(roms.get_all_rom_ids()) == set()


@pytest.mark.parametrize("game", ATARI57)
def test_random_play_is_zero_and_a_human_one(game: str) -> None:
    random, human = reference(game)
    np.testing.assert_allclose(human_normalised(game, np.array([random, human])), [0, 1])
    assert human_normalised(game, human + (human - random)) == pytest.approx(2)


@pytest.mark.parametrize(
    ("game", "hint"),
    [
        ("PONG", "did you mean 'pong'"),
        ("montezumas-revenge", "did you mean 'montezuma_revenge'"),
        ("catch", "are in ATARI57"),
    ],
)
def test_a_game_without_human_scores_is_named(game: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"no human score is known for the game '{game}'; .*{hint}"):
        human_normalised(game, 1.0)


@pytest.mark.parametrize("name", AGGREGATES)
def test_points_are_those_of_rliable(name: str) -> None:
    assert abs(float(AGGREGATES[name](SCORES)) - RLIABLE[name][0]) < 1e-12


@pytest.mark.parametrize("name", AGGREGATES)
def test_intervals_are_those_of_rliable(name: str) -> None:
    generator = np.random.default_rng(0)
    found = stratified_interval(SCORES, AGGREGATES[name], generator=generator, draws=50_000)
    np.testing.assert_allclose(found, RLIABLE[name][1:], atol=BOOTSTRAP_ERROR)


def test_an_interval_depends_on_its_generator_alone() -> None:
    first, again, other = (
        stratified_interval(SCORES, mean, generator=np.random.default_rng(seed)) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_a_lower_level_is_narrower() -> None:
    wide, narrow = (
        stratified_interval(SCORES, iqm, generator=np.random.default_rng(0), level=level)
        for level in (0.95, 0.5)
    )
    assert wide.low < narrow.low < narrow.high < wide.high


def test_seeds_are_drawn_within_each_game_on_their_own() -> None:
    """Two games that cancel out seed by seed: whole seeds drawn would leave nothing to be unsure of."""
    cancelling = np.array([[1.0, -1.0], [-1.0, 1.0]])
    low, high = stratified_interval(cancelling, mean, generator=np.random.default_rng(0))
    assert (low, high) == (-1, 1)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.ones(3), r"an array \(seeds, games\) with something in it, not \(3,\)"),
        (np.ones((0, 4)), "something in it"),
        (np.array([[1.0, 2.0], [np.nan, 1.0]]), "seed 1 in game 0 is nan; leave out"),
    ],
)
def test_scores_that_give_no_interval_are_refused(scores: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stratified_interval(scores, mean, generator=np.random.default_rng(0))


@given(matrices, any_aggregate, st.randoms(use_true_random=False))
def test_the_order_of_seeds_and_games_does_not_matter(scores: np.ndarray, name: str, random) -> None:
    aggregate, (seeds, games) = AGGREGATES[name], scores.shape
    shuffled = scores[:, random.sample(range(games), games)].copy()
    for game in range(games):  # each game's seeds on their own
        shuffled[:, game] = shuffled[random.sample(range(seeds), seeds), game]
    np.testing.assert_allclose(aggregate(shuffled), aggregate(scores), atol=1e-9)


@given(matrices, st.sampled_from([mean, median, iqm]), st.floats(0.1, 10), st.floats(-10, 10))
def test_another_scale_of_scores_is_another_scale_of_the_aggregate(
    scores: np.ndarray, aggregate, factor: float, offset: float
) -> None:
    expected = factor * aggregate(scores) + offset
    np.testing.assert_allclose(aggregate(factor * scores + offset), expected, atol=1e-9)


@given(matrices, st.sampled_from([mean, median, iqm]))
def test_an_aggregate_lies_among_the_scores(scores: np.ndarray, aggregate) -> None:
    assert scores.min() - 1e-9 <= aggregate(scores) <= scores.max() + 1e-9


@given(matrices, any_aggregate)
def test_leading_axes_stay(scores: np.ndarray, name: str) -> None:
    stack = np.stack([scores, scores + 1, 2 * scores])[:, None]
    found = AGGREGATES[name](stack)
    assert found.shape == (3, 1)
    np.testing.assert_allclose(found[:, 0], [AGGREGATES[name](one) for one in stack[:, 0]])


@given(matrices)
def test_one_huge_score_does_not_move_the_iqm(scores: np.ndarray) -> None:
    if scores.size >= 4:
        spiked = scores.copy()
        spiked.flat[scores.argmax()] = 1e6
        assert iqm(spiked) == pytest.approx(iqm(scores))


@given(matrices)
def test_the_optimality_gap_asks_for_no_more_than_the_threshold(scores: np.ndarray) -> None:
    assert optimality_gap(scores.clip(min=1)) == pytest.approx(0)
    assert optimality_gap(scores) == pytest.approx(optimality_gap(scores.clip(max=1)))
    assert optimality_gap(scores.clip(max=1)) == pytest.approx(1 - mean(scores.clip(max=1)))
    assert optimality_gap(scores, threshold=60.0) == pytest.approx(60 - mean(scores))
