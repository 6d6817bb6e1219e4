"""Atari: what ale-py's vector environment makes of a game, against a plain emulator, frame by frame."""

from __future__ import annotations

import inspect

import ale_py
import numpy as np
import pytest
from ale_py import AtariVectorEnv, roms

from nap.lab.loops.rainbow.atari import GAMES, NOOPS, TWO_PLAYERS, Atari, episode_seeds, single_player
from nap.lab.loops.rainbow.games import Step


def stacked(game: str, count: int, seed: int) -> tuple[AtariVectorEnv, np.ndarray, dict[str, np.ndarray]]:
    """ale-py's own environment with its stack of 4, where `Atari` would begin; first frames and info."""
    env = AtariVectorEnv(
        game, count, num_threads=1, noop_max=NOOPS, reward_clipping=False, use_fire_reset=False
    )
    stacks, info = env.reset(seed=episode_seeds(seed, 0, count))
    return env, stacks[:, -1], info


def step_of(games: Atari, actions: np.ndarray) -> Step:
    games.send(actions)
    return games.recv()


def test_the_newest_frame_of_the_stack() -> None:
    """Frames, scores, ends and lost lives are those of ale-py's stacks, over new episodes too.

    Ours play in two threads and the stacks in one: no result depends on that.
    """
    games = Atari("breakout", 2, threads=2)
    env, frames, info = stacked("breakout", 2, seed=3)
    assert np.array_equal(games.reset(seed=3), frames)
    assert games.actions == 4
    draws = np.random.default_rng(0)
    lives, before, lost, over = info["lives"], np.zeros(2, bool), 0, 0
    for _ in range(150):
        actions = draws.integers(2, size=2)  # nothing and serve, which soon loses
        step = step_of(games, actions)
        stacks, scores, terminal, cut_off, info = env.step(actions)
        assert np.array_equal(step.frames, stacks[:, -1])
        assert np.array_equal(step.scores, scores)
        assert np.array_equal(step.terminal, terminal)
        assert np.array_equal(step.ended, terminal | cut_off)
        assert np.array_equal(step.first, before)
        assert step.life_lost.tolist() == [
            now < then and not new and not end
            for now, then, new, end in zip(info["lives"], lives, before, step.ended, strict=True)
        ]
        lives, before = info["lives"], step.ended
        lost, over = lost + int(step.life_lost.sum()), over + int(terminal.sum())
    assert over == 2
    assert lost == 4 * over + int((5 - lives).sum())  # 5 lives: the last one ends the game


def averaging(pixels: int, cells: int) -> np.ndarray:
    """The matrix that shrinks `pixels` to `cells` by the mean over each cell's area."""
    edges, left = np.linspace(0, pixels, cells + 1), np.arange(pixels)
    overlap = np.minimum(edges[1:, None], left + 1) - np.maximum(edges[:-1, None], left)
    return overlap.clip(min=0) * cells / pixels


@pytest.mark.parametrize(("game", "seed"), [("ms_pacman", 0), ("pong", 4)])
def test_against_a_plain_emulator(game: str, seed: int) -> None:
    """No-ops; then 4 frames an action, the last two merged by their maximum, grey, averaged to 84×84."""
    games = Atari(game, 1, threads=1)
    noops = int(stacked(game, 1, seed)[2]["episode_frame_number"][0])
    assert noops > 1
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", 0.0)
    rom = roms.get_rom_path(game)
    assert rom is not None
    emulator.loadROM(rom)
    emulator.reset_game()
    for _ in range(noops):
        emulator.act(ale_py.Action.NOOP)
    rows, columns = averaging(210, 84), averaging(160, 84)
    buttons, draws = emulator.getMinimalActionSet(), np.random.default_rng(0)
    games.reset(seed=seed)
    for _ in range(120):
        action = draws.integers(games.actions, size=1)
        step = step_of(games, action)
        screens, score = [], 0
        for _ in range(games.frames_per_step):
            score += emulator.act(buttons[action[0]])
            screens.append(emulator.getScreenGrayscale())
        wanted = rows @ np.maximum(*screens[-2:]).astype(float) @ columns.T
        assert abs(wanted - step.frames[0]).max() < 0.501  # it rounds
        assert step.scores[0] == score
        assert step.terminal[0] == emulator.game_over()
        if step.ended[0]:
            break


def test_scores_are_raw() -> None:
    games = Atari("asterix", 2, threads=2)
    games.reset(seed=0)
    draws = np.random.default_rng(0)
    scores = [step_of(games, draws.integers(games.actions, size=2)).scores for _ in range(60)]
    assert np.max(scores) == 50  # what Asterix pays


def test_an_episode_is_cut_off_after_so_many_frames() -> None:
    """Frames of play, not those of doing nothing before; 101 of them are 26 steps."""
    games = Atari("breakout", 2, threads=2, frame_cap=101)
    games.reset(seed=0)
    played = [step_of(games, np.zeros(2, np.int64)) for _ in range(54)]
    ends = [turn for turn, step in enumerate(played, start=1) if step.ended.any()]
    assert ends == [26, 53]
    assert all(played[turn - 1].ended.all() for turn in ends)
    assert played[26].first.all()
    assert not any(step.terminal.any() or step.life_lost.any() for step in played)
    assert inspect.signature(Atari).parameters["frame_cap"].default == 108_000  # DQN Zoo's


class Scripted:
    """Stands in for ale-py's environment: one game whose lives are told beforehand; with 9 it is cut off."""

    def __init__(self, lives: list[int]) -> None:
        self.lives = iter(lives)

    def send(self, actions: np.ndarray) -> None:
        self.now = next(self.lives)

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        no, cut_off = np.array([False]), np.array([self.now == 9])
        return (
            np.zeros((1, 1, 84, 84), np.uint8),
            np.zeros(1, np.int32),
            no,
            cut_off,
            {"lives": np.array([self.now], np.int32)},
        )


def test_a_new_episode_with_fewer_lives_has_lost_none() -> None:
    """As after one that won extra lives and was cut off."""
    games = Atari("breakout", 1, threads=1)
    games.reset(seed=0)
    games._env = Scripted([5, 6, 9, 5, 4, 3, 4])
    steps = [step_of(games, np.zeros(1, np.int64)) for _ in range(7)]
    assert [bool(step.ended[0]) for step in steps] == [False, False, True, False, False, False, False]
    assert [bool(step.life_lost[0]) for step in steps] == [False, False, False, False, True, True, False]


def test_how_long_nothing_is_done() -> None:
    """0 to 30 frames, about equally often (χ² of 31 values is below 59.7 in 99.9 % of draws)."""
    env = AtariVectorEnv("breakout", 4, num_threads=2, noop_max=NOOPS, use_fire_reset=False)
    env.reset(seed=episode_seeds(0, 0, 4))
    frames = [env.reset()[1]["episode_frame_number"] for _ in range(40)]
    counts, even = np.bincount(np.concatenate(frames)), 4 * 40 / 31
    assert len(counts) == 31
    assert ((counts - even) ** 2 / even).sum() < 59.7


def test_neighbouring_seeds_share_no_episodes() -> None:
    seeds = np.concatenate([episode_seeds(seed, steps, 32) for seed in range(8) for steps in (0, 1)])
    assert len(set(seeds.tolist())) == len(seeds)
    assert (seeds >= 0).all()
    assert (seeds < 2**31).all()


@pytest.mark.parametrize("game", ["breakout", "skiing"])
def test_all_actions_of_the_joystick(game: str) -> None:
    """Skiing takes no button: there pressing it as well changes nothing."""
    games, seen = Atari(game, 1, full_actions=True, threads=1), []
    assert games.actions == 18
    for names in (("NOOP", "RIGHT", "LEFT"), ("FIRE", "RIGHTFIRE", "LEFTFIRE")):
        games.reset(seed=0)
        actions = [ale_py.Action.__members__[name].value for name in names for _ in range(15)]
        seen.append([step_of(games, np.array([action])).frames for action in actions])
    assert np.array_equal(seen[0], seen[1]) is (game == "skiing")
    right, left = seen[0][29], seen[0][44]
    assert not np.array_equal(right, left)


def test_the_57_games() -> None:
    assert len(set(GAMES)) == len(GAMES) == 57
    assert list(GAMES) == sorted(GAMES)
    assert set(GAMES) <= set(single_player())
    assert set(single_player()) | TWO_PLAYERS == set(roms.get_all_rom_ids())


@pytest.mark.parametrize("game", GAMES[::14])
def test_a_game_starts(game: str) -> None:
    games = Atari(game, 1, threads=1)
    games.reset(seed=0)
    step = step_of(games, np.array([games.actions - 1]))
    assert len(np.unique(step.frames)) > 1  # it shows something
    assert not step.ended.any()
