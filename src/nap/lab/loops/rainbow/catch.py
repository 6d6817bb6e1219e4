"""Catch: a small game of our own, for tests and demonstrations, played by numpy on tiny frames.

A ball falls one row a step, straight down or drifting one column a step and bouncing off the sides. A
paddle, 3 wide, moves along the bottom row. Which way a ball drifts shows in two frames and not in one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from nap.lab.loops.rainbow.games import HostGames, Step

BALLS, LIVES = 10, 3
BALL, PADDLE = 255, 180  # brightness


@dataclass
class _Boards:
    """Where N games stand: all that changes in them."""

    episode: np.ndarray  # int64 (N,), as the others: the episodes before this one
    ball: np.ndarray  # the balls before this one
    row: np.ndarray  # of the ball, from the top
    paddle: np.ndarray  # the column of its middle
    lives: np.ndarray
    over: np.ndarray  # 1 where the episode ended with the last step


class Catch(HostGames):
    """`count` copies of Catch on frames of `side`×`side` pixels.

    Actions: 0 left, 1 stay, 2 right. A ball caught scores 1; a miss −1 and costs one of 3 lives. The game
    is over when none is left; an episode of 10 balls is cut off. Following the ball scores 10, the most there
    is; random play −2.0 on average at side 12, and −1.3 at side 8. What falls where is a function of seed,
    game, episode and ball alone. `mirrored` exchanges left and right: another game that looks the same.

    >>> catch = Catch(1, side=5)
    >>> catch.reset(seed=3)[0]
    array([[  0,   0, 255,   0,   0],
           [  0,   0,   0,   0,   0],
           [  0,   0,   0,   0,   0],
           [  0,   0,   0,   0,   0],
           [  0, 180, 180, 180,   0]], dtype=uint8)
    """

    name, actions = "catch", 3
    shape: tuple[int, ...]
    frames_per_step = 1
    saves_exactly = True

    def __init__(self, count: int, *, side: int = 8, mirrored: bool = False) -> None:
        if side < 5:
            raise ValueError(f"side is {side}, but a paddle of 3 columns needs a board of at least 5")
        self.count, self.shape = count, (side, side)
        self._bottom, self._towards = side - 1, -1 if mirrored else 1
        self.reset(0)

    @property
    def frames(self) -> np.ndarray:
        now, games = self._now, np.arange(self.count)
        pixels = np.zeros((self.count, *self.shape), np.uint8)
        for beside in (-1, 0, 1):
            pixels[games, self._bottom, now.paddle + beside] = PADDLE
        pixels[games, now.row, self._column()] = BALL
        return pixels

    def reset(self, seed: int) -> np.ndarray:
        self._seed, self._sent = seed, None
        self._now = _Boards(*np.zeros((len(fields(_Boards)), self.count), np.int64))
        self._start, self._drift = np.zeros((2, self.count, BALLS), np.int64)
        self._begin_(np.full(self.count, True))
        return self.frames

    def _step(self, actions: np.ndarray) -> Step:
        now, first = self._now, self._now.over == 1
        now.paddle = np.clip(now.paddle + self._towards * (actions - 1), 1, self._bottom - 1)
        now.row = (now.row + 1) % (self._bottom + 1)
        now.ball += now.row == 0  # the last one had landed
        now.episode += first
        self._begin_(first)

        landed = now.row == self._bottom
        caught = landed & (abs(self._column() - now.paddle) <= 1)
        missed = landed & ~caught
        now.lives -= missed
        terminal = now.lives == 0
        ended = terminal | (landed & (now.ball == BALLS - 1))
        now.over = ended.astype(np.int64)
        scores = caught.astype(np.float32) - missed
        return Step(self.frames, scores, ended, terminal, life_lost=missed & ~ended, first=first)

    def state_dict(self) -> dict[str, Any]:
        self._require_idle("recv() it before the state is saved")
        boards = {field.name: torch.tensor(getattr(self._now, field.name)) for field in fields(_Boards)}
        return {"seed": self._seed, "boards": boards}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        boards = {name: board.numpy().copy() for name, board in state["boards"].items()}
        self._require_count(len(boards["episode"]))
        self._seed, self._sent, self._now = state["seed"], None, _Boards(**boards)
        for game in range(self.count):
            self._plan_(game)

    def _begin_(self, where: np.ndarray) -> None:
        """The first frame of the episodes of these games."""
        now = self._now
        now.ball[where] = now.row[where] = now.over[where] = 0
        now.lives[where] = LIVES
        now.paddle[where] = self._bottom // 2
        for game in np.flatnonzero(where).tolist():
            self._plan_(game)

    def _plan_(self, game: int) -> None:
        """Where the balls of the game's episode start, and how they drift."""
        key = (game, int(self._now.episode[game]))
        draws = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=key))
        self._start[game] = draws.integers(self._bottom + 1, size=BALLS)
        self._drift[game] = draws.integers(-1, 2, size=BALLS)

    def _column(self) -> np.ndarray:
        """The column of each ball: that of a straight line, folded at the sides."""
        games, now = np.arange(self.count), self._now
        line = self._start[games, now.ball] + self._drift[games, now.ball] * now.row
        return self._bottom - abs(self._bottom - line % (2 * self._bottom))
