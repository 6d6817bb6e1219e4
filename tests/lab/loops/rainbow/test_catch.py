"""Catch's rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nap.lab.loops.rainbow.catch import BALL, PADDLE, Catch
from nap.lab.loops.rainbow.games import make
from tiny_agents import play


def ball_of(frame: np.ndarray) -> tuple[int, int]:
    ((row, column),) = np.argwhere(frame == BALL)
    return int(row), int(column)


def paddle_of(frame: np.ndarray) -> float:
    return float(np.flatnonzero(frame[-1] == PADDLE).mean())


def follow(frames: np.ndarray) -> np.ndarray:
    """The actions that bring paddles under balls; none while a ball lies at the bottom."""
    actions = np.ones(len(frames), np.int64)
    for game, frame in enumerate(frames):
        row, column = ball_of(frame)
        if row < len(frame) - 1:
            actions[game] += int(np.sign(column - paddle_of(frame)))
    return actions


def test_an_episode_of_catch_by_hand() -> None:
    """5×5, seed 1: the balls start at columns 3, 4, 0 and 4 and drift by −1, 0, −1 and −1."""
    tape = [  # action, then: ball's row and column, paddle, score, event
        (0, (1, 2), 1, 0, ""),
        (0, (2, 1), 1, 0, ""),  # the paddle is at the side already
        (1, (3, 0), 1, 0, ""),
        (1, (4, 1), 1, 1, ""),  # bounced, and caught
        (2, (0, 4), 2, 0, ""),
        (1, (1, 4), 2, 0, ""),
        (1, (2, 4), 2, 0, ""),
        (1, (3, 4), 2, 0, ""),
        (1, (4, 4), 2, -1, "life_lost"),
        (0, (0, 0), 1, 0, ""),
        (1, (1, 1), 1, 0, ""),
        (1, (2, 2), 1, 0, ""),
        (1, (3, 3), 1, 0, ""),
        (1, (4, 4), 1, -1, "life_lost"),
        (2, (0, 4), 2, 0, ""),
        (2, (1, 3), 3, 0, ""),
        (2, (2, 2), 3, 0, ""),
        (2, (3, 1), 3, 0, ""),
        (2, (4, 0), 3, -1, "terminal"),
        (2, (0, None), 2, 0, "first"),
    ]
    catch = Catch(1, side=5)
    frame = catch.reset(seed=1)[0]
    assert (ball_of(frame), paddle_of(frame)) == ((0, 3), 2)
    for action, (row, column), paddle, score, event in tape:
        (step,) = play(catch, np.array([[action]]))
        picture = np.zeros((5, 5), np.uint8)
        picture[4, paddle - 1 : paddle + 2] = PADDLE
        picture[row, ball_of(step.frames[0])[1] if column is None else column] = BALL
        assert np.array_equal(step.frames[0], picture)
        assert step.scores[0] == score
        flags = {name for name in ("terminal", "life_lost", "first") if getattr(step, name)[0]}
        assert flags == ({event} if event else set())
        assert step.ended[0] == (event == "terminal")


def test_a_missed_last_ball_is_no_lost_life() -> None:
    """The episode is cut off there: 9 balls caught, one missed, two lives left."""
    catch = Catch(64, side=12)
    frames, caught, missed = catch.reset(seed=0), 0, 0
    for turn in range(12 * 10 - 1):
        actions = follow(frames)
        if turn >= 12 * 9:
            actions = 2 - actions  # flee
        (step,) = play(catch, actions[None])
        frames = step.frames
        caught += int((step.scores == 1).sum())
        assert not step.life_lost.any()
        missed += int((step.scores == -1).sum())
    assert step.ended.all()
    assert not step.terminal.any()
    assert caught + missed == 64 * 10
    assert missed >= 20


def scores_of_play(
    policy: Callable[[np.ndarray], np.ndarray], side: int, games: int, steps: int
) -> np.ndarray:
    """The scores of the episodes that ended."""
    catch = Catch(games, side=side)
    frames, running, finished = catch.reset(seed=0), np.zeros(games), []
    for _ in range(steps):
        (step,) = play(catch, policy(frames)[None])
        frames = step.frames
        running += step.scores
        finished += running[step.ended].tolist()
        running[step.ended] = 0
    return np.array(finished)


@pytest.mark.parametrize("side", [5, 8, 12])
def test_perfect_play_scores_ten(side: int) -> None:
    scores = scores_of_play(follow, side, games=16, steps=20 * side)
    assert len(scores) == 32
    assert (scores == 10).all()


@pytest.mark.parametrize(("side", "mean"), [(8, -1.28), (12, -2.02)])
def test_random_play_scores_below_zero(side: int, mean: float) -> None:
    """The means were measured so, over 2,595 and 2,010 episodes; their standard error is 0.03."""
    draws = np.random.default_rng(0)
    scores = scores_of_play(lambda frames: draws.integers(3, size=len(frames)), side, games=256, steps=400)
    assert len(scores) > 1500
    assert abs(scores.mean() - mean) < 0.1
    assert scores.min() == -3


def balls_seen(count: int, policy: Callable[[np.ndarray], np.ndarray]) -> dict[tuple[int, int, int], Any]:
    """For (game, episode, ball) the columns of its first two rows."""
    catch = Catch(count, side=12)
    frames, episode, ball = catch.reset(seed=9), [0] * count, [0] * count
    seen: dict[tuple[int, int, int], Any] = {}
    for _ in range(300):
        for game, frame in enumerate(frames):
            row, column = ball_of(frame)
            if row < 2:
                seen.setdefault((game, episode[game], ball[game]), []).append(column)
        (step,) = play(catch, policy(frames)[None])
        frames = step.frames
        for game, frame in enumerate(frames):
            if step.first[game]:
                episode[game], ball[game] = episode[game] + 1, 0
            elif ball_of(frame)[0] == 0:
                ball[game] += 1
    return seen


def test_balls_depend_on_their_key_alone() -> None:
    """Not on how many games there are, nor on how they were played; and they differ between keys."""
    well, badly = balls_seen(2, follow), balls_seen(4, lambda frames: np.zeros(len(frames), np.int64))
    common = [key for key in well.keys() & badly.keys() if key[1] > 0 and len(well[key]) == 2]
    assert len(common) >= 8
    for key in common:
        assert badly[key] == well[key]
    starts = {(g, e): tuple(badly[g, e, ball][0] for ball in range(3)) for g in range(4) for e in range(5)}
    assert len(set(starts.values())) >= 19
    drifts = {second - first for first, second in (both for both in badly.values() if len(both) == 2)}
    assert drifts == {-1, 0, 1}


def test_another_number_of_games_is_refused() -> None:
    with pytest.raises(ValueError, match="saved state is of 2 games and these are 3"):
        Catch(3).load_state_dict(Catch(2).state_dict())


def test_a_board_too_small_for_the_paddle() -> None:
    with pytest.raises(ValueError, match=r"side is 4, but .* at least 5"):
        Catch(1, side=4)


def test_mirrored_catch_exchanges_left_and_right() -> None:
    plain, mirrored = make("catch", 3), make("catch-mirrored", 3)
    assert np.array_equal(plain.reset(seed=4), mirrored.reset(seed=4))
    actions = np.random.default_rng(0).integers(3, size=(200, 3))
    for one, other in zip(play(plain, actions), play(mirrored, 2 - actions), strict=True):
        assert np.array_equal(one.frames, other.frames)
        assert np.array_equal(one.scores, other.scores)
    assert not np.array_equal(play(plain, actions[:3])[-1].frames, play(mirrored, actions[:3])[-1].frames)


def test_catch_has_no_joystick() -> None:
    with pytest.raises(ValueError, match="leave it out"):
        make("catch", 1, full_actions=True)
