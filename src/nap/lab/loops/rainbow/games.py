"""N copies of a game that step together, by name.

The step after the end of an episode ignores its action, scores nothing and shows the first frame of a new
one. Learning leaves out those steps, which are marked `first`.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Step:
    """What N games did with N actions. No later step writes to these arrays."""

    frames: np.ndarray
    """uint8 (N, H, W) or (N, C, H, W): the newest frame; of an episode that ended, its last one"""
    scores: np.ndarray
    """float32 (N,): raw points, summed over the skipped frames, never clipped"""
    ended: np.ndarray
    """bool (N,): the episode ended with this step, because the game was over or because it was cut off"""
    terminal: np.ndarray
    """bool (N,): the game was over; a part of `ended`"""
    life_lost: np.ndarray
    """bool (N,): a life was lost and the episode goes on"""
    first: np.ndarray
    """bool (N,): this frame begins a new episode; the action was ignored and the score is 0"""


class Games(Protocol):
    """N copies of a game. They play between `send` and `recv`; meanwhile there is time for other work."""

    count: int
    actions: int
    """how many actions there are: an action is a whole number from 0 to `actions` − 1"""
    shape: tuple[int, ...]
    """height and width of a frame, after its channels if it has more than one"""
    frames_per_step: int
    """frames of the game that one action lasts"""
    saves_exactly: bool
    """whether `load_state_dict` goes on with the saved episodes, or has to begin new ones"""

    @property
    def frames(self) -> np.ndarray:
        """The newest frames, uint8 (N, *shape), the caller's own."""

    def reset(self, seed: int) -> np.ndarray:
        """Begin new episodes, which depend on the seed alone; their first frames."""

    def send(self, actions: np.ndarray) -> None:
        """Begin a step with N actions, and return at once."""

    def recv(self) -> Step:
        """What the step begun by `send` did."""

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs: numbers, strings and tensors. Not between `send` and `recv`."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state; where `saves_exactly` is false, with new episodes. See `frames` then."""

    def close(self) -> None:
        """Let go of what the games hold, such as threads."""


class HostGames(ABC):
    """Games that this process plays itself, in `recv`. `send` and `recv` take turns, or an error says so."""

    name: str
    count: int
    actions: int
    _sent: np.ndarray | None = None

    def send(self, actions: np.ndarray) -> None:
        self._require_idle("recv() it before the next send()")
        self._sent = checked_actions(actions, self.count, self.actions)

    def recv(self) -> Step:
        if self._sent is None:
            raise ValueError(f"{self.name} plays no step that could be received; send() actions first")
        actions, self._sent = self._sent, None
        return self._step(actions)

    def close(self) -> None:  # noqa: B027 (nothing to override it for)
        """Nothing is held."""

    @abstractmethod
    def _step(self, actions: np.ndarray) -> Step:
        """Play a step."""

    def _require_idle(self, way_out: str) -> None:
        if self._sent is not None:
            raise ValueError(f"{self.name} plays a step already; {way_out}")

    def _require_count(self, saved: int) -> None:
        if saved != self.count:
            raise ValueError(f"the saved state is of {saved} games and these are {self.count}: make as many")


BUILT_IN = ("catch", "catch-mirrored")
MINATAR = tuple(
    f"minatar/{game}" for game in ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
)
"""MinAtar's five games."""


def make(name: str, count: int, *, full_actions: bool = False, threads: int = 0) -> Games:
    """`count` copies of the game called `name`, one of `names()`.

    `full_actions` gives an Atari game all 18 actions of the joystick and not only those it heeds, so that
    one agent can play several games; it gives one of MinAtar's all 6, and 10 channels. `threads` is for
    Atari alone: how many play (0: as many as there are cores). No result depends on it.

    >>> catch = make("catch", 32)
    >>> catch.count, catch.actions
    (32, 3)
    """
    if name in BUILT_IN:
        from nap.lab.loops.rainbow.catch import Catch

        if full_actions:
            raise ValueError(
                f"{name} has its own 3 actions; full_actions is for Atari games, leave it out here"
            )
        return Catch(count, mirrored=name != "catch")
    if name in MINATAR:
        from nap.lab.loops.rainbow.minatar import MinAtar

        return MinAtar(name, count, full_actions=full_actions)
    from nap.lab.loops.rainbow.atari import Atari

    return Atari(name, count, full_actions=full_actions, threads=threads)


def names() -> tuple[str, ...]:
    """Every name that `make` takes."""
    from nap.lab.loops.rainbow.atari import single_player

    return (*BUILT_IN, *MINATAR, *single_player())


def require_known(name: str) -> None:
    """Raise, with the nearest names, where there is no such game."""
    if name in (*BUILT_IN, *MINATAR):  # which do without ale-py
        return
    known = names()
    if name not in known:
        nearest = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.0)
        raise ValueError(
            f"there is no game {name!r} for one player; the nearest names are {', '.join(nearest)}; "
            "nap.lab.loops.rainbow.games.names() lists all of them"
        )


def checked_actions(actions: np.ndarray, count: int, number: int) -> np.ndarray:
    """The actions as int64 (N,), a copy; raises where they are not N numbers from 0 to `number` − 1."""
    if actions.shape != (count,) or not np.issubdtype(actions.dtype, np.integer):
        raise ValueError(
            f"{count} games take {count} whole numbers, but the actions are of shape {actions.shape} "
            f"and type {actions.dtype}"
        )
    if not ((actions >= 0) & (actions < number)).all():
        raise ValueError(f"actions go from 0 to {number - 1}, but these are {actions.tolist()}")
    return actions.astype(np.int64)
