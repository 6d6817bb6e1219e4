"""MinAtar: five Atari games made small, 10×10 with a channel for each kind of thing (Young & Tian 2019).

The games are those of the package MinAtar, as they are: sticky actions with probability 0.1 and difficulty
that ramps up, both its own defaults. No game has lives. Its modules of the games need numpy alone and are
loaded by themselves, for the package as a whole imports matplotlib and seaborn, which it draws with.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nap.lab.loops.rainbow.games import HostGames, Step

SIDE, CHANNELS, ACTIONS = 10, 10, 6  # of a board; the most channels, which Seaquest has; of the joystick
PRESENT = 255  # how a frame shows that a thing is there: frames are uint8, 0 to 255
FIXED = ("channels", "action_map", "ramping", "random")  # what a game holds besides where it stands
CLOCKED = frozenset({"minatar/freeway"})  # its one end is the clock, so that end is no loss


class MinAtar(HostGames):
    """`count` copies of a MinAtar game: frames of channels × 10 × 10, one of them a step.

    An agent has the actions that the game heeds, or with `full_actions` all 6, and 10 channels whatever the
    game needs, so that one agent can play several games. Freeway ends by its clock after 2,500 steps, and any
    game is cut off after `frame_cap`: such an end keeps its future, as elsewhere in this package.

    Args:
        sticky: probability that the action before is played again.
        ramping: games grow harder as they go on, where MinAtar has them do so.
        frame_cap: steps of an episode at most; MinAtar itself has no such limit.
    """

    frames_per_step = 1
    saves_exactly = True

    def __init__(
        self,
        game: str,
        count: int,
        *,
        full_actions: bool = False,
        sticky: float = 0.1,
        ramping: bool = True,
        frame_cap: int = 10_000,
    ) -> None:
        if not 0 <= sticky < 1:
            raise ValueError(f"sticky={sticky} is a probability: 0 ≤ sticky < 1")
        kind = _game(game)
        self.name, self.count, self.sticky, self.frame_cap = game, count, sticky, frame_cap
        self._games = [kind(ramping=ramping) for _ in range(count)]
        some = self._games[0]
        self._meant = np.arange(ACTIONS) if full_actions else np.array(some.minimal_action_set())
        self.actions = len(self._meant)
        channels = CHANNELS if full_actions else int(some.state_shape()[2])
        self.shape: tuple[int, ...] = (channels, SIDE, SIDE)
        self._boards = np.zeros((count, SIDE, SIDE, channels), bool)
        self.reset(0)

    @property
    def frames(self) -> np.ndarray:
        return np.multiply(self._boards.transpose(0, 3, 1, 2), PRESENT, dtype=np.uint8, order="C")

    def reset(self, seed: int) -> np.ndarray:
        words = np.random.SeedSequence(seed).generate_state(self.count)
        self._before = np.zeros(self.count, np.int64)  # the actions before
        self._played = np.zeros(self.count, np.int64)  # steps of the episodes under way
        self._over = np.zeros(self.count, bool)
        self._sent = None
        for place, (game, word) in enumerate(zip(self._games, words, strict=True)):
            game.random = np.random.RandomState(word)
            game.reset()
            self._show(place, game)
        return self.frames

    def _step(self, actions: np.ndarray) -> Step:
        sent, first = self._meant[actions].tolist(), self._over
        scores, lost = np.zeros(self.count, np.float32), np.zeros(self.count, bool)
        for place, game in enumerate(self._games):
            if first[place]:
                game.reset()
            else:
                scores[place], lost[place] = self._play(place, game, sent[place])
            self._show(place, game)
        self._played = np.where(first, 0, self._played + 1)
        terminal = lost & (self.name not in CLOCKED)
        self._over = lost | (self._played >= self.frame_cap)
        ended, no_life = self._over.copy(), np.zeros(self.count, bool)
        return Step(self.frames, scores, ended, terminal, life_lost=no_life, first=first)

    def state_dict(self) -> dict[str, Any]:
        self._require_idle("recv() it before the state is saved")
        return {
            "games": [_saved(game) for game in self._games],
            "random": [_saved_random(game.random) for game in self._games],
            **{name: torch.tensor(getattr(self, f"_{name}")) for name in ("before", "played", "over")},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._require_count(len(state["games"]))
        self._sent = None
        self._before, self._played, self._over = (
            state[name].numpy().copy() for name in ("before", "played", "over")
        )
        for place, game in enumerate(self._games):
            vars(game).update({name: _loaded(value) for name, value in state["games"][place].items()})
            keys, place_in, has, cached = state["random"][place]
            game.random.set_state(("MT19937", keys.numpy().astype(np.uint32), place_in, has, cached))
            self._show(place, game)

    def _play(self, place: int, game: Any, action: int) -> tuple[float, bool]:
        """One step, with MinAtar's order of draws: whether the action sticks, then the game's own."""
        if game.random.rand() < self.sticky:
            action = int(self._before[place])
        self._before[place] = action
        score, over = game.act(action)
        return float(score), bool(over)

    def _show(self, place: int, game: Any) -> None:
        board = game.state()
        self._boards[place, :, :, : board.shape[2]] = board


@cache
def _game(name: str) -> Any:
    package = find_spec("minatar")
    if package is None or not package.submodule_search_locations:
        raise ValueError(
            'MinAtar\'s games need its package: pip install "normalize-and-project[rainbow]", or pip install '
            '--no-deps MinAtar, which is enough; the game "catch" does without'
        )
    file = (
        Path(package.submodule_search_locations[0]) / "environments" / f"{name.removeprefix('minatar/')}.py"
    )
    spec = spec_from_file_location(f"minatar_game_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Env


def _saved(game: Any) -> dict[str, Any]:
    return {name: _plain(value) for name, value in vars(game).items() if name not in FIXED}


def _plain(value: Any) -> Any:
    """Numbers, lists and tensors for what a game holds."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _loaded(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy().copy()
    return [_loaded(one) for one in value] if isinstance(value, list) else value


def _saved_random(random: np.random.RandomState) -> tuple[Any, ...]:
    state: Mapping[str, Any] = random.get_state(legacy=False)
    words = torch.from_numpy(state["state"]["key"].astype(np.int64))
    return words, int(state["state"]["pos"]), int(state["has_gauss"]), float(state["gauss"])
