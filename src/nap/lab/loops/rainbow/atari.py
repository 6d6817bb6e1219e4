"""Atari games with DQN Zoo's preprocessing, played in threads by ale-py's vector environment.

Of each 4 frames that an action lasts the last two, in grey, are merged by their maximum and scaled to
84×84 by averaging; scores are summed and not clipped; no sticky actions; no button is pressed for the
player; episodes go on after a lost life.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nap.lab.loops.rainbow.games import Step, checked_actions, require_known
from nap.lab.machine import cores

GAMES = tuple(
    """
    alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk bowling boxing
    breakout centipede chopper_command crazy_climber defender demon_attack double_dunk enduro fishing_derby
    freeway frostbite gopher gravitar hero ice_hockey jamesbond kangaroo krull kung_fu_master
    montezuma_revenge ms_pacman name_this_game phoenix pitfall pong private_eye qbert riverraid road_runner
    robotank seaquest skiing solaris space_invaders star_gunner surround tennis time_pilot tutankham
    up_n_down venture video_pinball wizard_of_wor yars_revenge zaxxon
    """.split()  # noqa: SIM905 (a literal takes 57 lines)
)
"""The 57 games that agents are usually compared on, by the names of their ROMs."""

TWO_PLAYERS = frozenset({"combat", "joust", "maze_craze", "warlords"})
"""ROMs that ale-py carries and cannot start: it would end the whole process."""

NOOPS = 31
"""ale-py draws from 0 to one less"""


class Atari:
    """`count` copies of an Atari game: frames of 84×84, 4 of them a step.

    An episode is cut off after `frame_cap` frames of play. Each begins with 0 to 30 frames of doing
    nothing, every number equally likely; DQN Zoo draws from 1 to 30, which ale-py cannot. These frames do
    not count towards the cap. Their number is all that the seed decides: the games themselves are
    deterministic.

    The state of an emulator cannot be saved (`saves_exactly` is false). `load_state_dict` drops the episodes
    under way and begins new ones, whose seeds depend on the seed given to `reset` and on the number of steps
    since, so that two runs that go on from one checkpoint play the same episodes, and not those that were
    played before. Seeding takes ale-py about 0.1 s a game, and new episodes later on a few milliseconds.
    """

    frames_per_step = 4
    saves_exactly = False

    def __init__(
        self,
        game: str,
        count: int,
        *,
        full_actions: bool = False,
        threads: int = 0,
        frame_cap: int = 108_000,
    ) -> None:
        ale_py = _ale_py()
        require_known(game)
        self.game, self.count = game, count
        self.shape: tuple[int, ...] = (84, 84)
        self._env: Any = ale_py.AtariVectorEnv(
            game,
            count,
            num_threads=threads or min(count, cores()),
            max_num_frames_per_episode=frame_cap,
            repeat_action_probability=0.0,
            full_action_space=full_actions,
            autoreset_mode="NextStep",
            img_height=self.shape[0],
            img_width=self.shape[1],
            grayscale=True,
            stack_num=1,  # the newest frame alone: stacks are the replay's business
            frameskip=self.frames_per_step,
            maxpool=True,
            noop_max=NOOPS,
            episodic_life=False,
            reward_clipping=False,
            use_fire_reset=False,
        )
        legal = [action.name for action in self._env.ale.get_action_set()]
        joystick = [ale_py.Action(number).name for number in range(18)] if full_actions else legal
        self._meant = meant(joystick, legal)
        self.actions = len(self._meant)
        self._seed = self._steps = 0
        self._frames = np.zeros((count, *self.shape), np.uint8)
        self._lives = np.zeros(count, np.int32)
        self._ended = np.zeros(count, bool)
        self._under_way = False

    @property
    def frames(self) -> np.ndarray:
        return self._frames.copy()

    def reset(self, seed: int) -> np.ndarray:
        self._seed, self._steps = seed, 0
        self._begin_()
        return self.frames

    def send(self, actions: np.ndarray) -> None:
        if self._under_way:
            raise ValueError(f"{self.game} plays a step already; recv() it before the next send()")
        # out of range, ale-py would wait for ever
        self._env.send(self._meant[checked_actions(actions, self.count, self.actions)])
        self._under_way = True

    def recv(self) -> Step:
        if not self._under_way:
            raise ValueError(f"{self.game} plays no step that could be received; send() actions first")
        observations, scores, terminal, cut_off, info = self._env.recv()
        self._under_way = False
        self._steps += 1
        self._frames = observations[:, -1]
        first, ended = self._ended, terminal | cut_off
        fewer_lives = info["lives"] < self._lives
        self._ended, self._lives = ended, info["lives"]
        return Step(
            frames=self.frames,
            scores=scores.astype(np.float32),
            ended=ended.copy(),
            terminal=terminal,
            life_lost=fewer_lives & ~first & ~ended,
            first=first,
        )

    def state_dict(self) -> dict[str, Any]:
        if self._under_way:
            raise ValueError(f"{self.game} plays a step; recv() it before the state is saved")
        return {"seed": self._seed, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seed, self._steps = state["seed"], state["steps"]
        self._begin_()

    def close(self) -> None:
        self._env = None  # its threads end with it

    def _begin_(self) -> None:
        if self._under_way:  # ale-py's memory is corrupted by a reset during a step
            self._env.recv()
            self._under_way = False
        observations, info = self._env.reset(seed=episode_seeds(self._seed, self._steps, self.count))
        self._frames, self._lives = observations[:, -1], info["lives"]
        self._ended = np.zeros(self.count, bool)


def episode_seeds(seed: int, steps: int, count: int) -> np.ndarray:
    """What ale-py is seeded with, int64 (N,), each from 0 to 2³¹ − 1.

    Consecutive numbers, its own way, would give neighbouring seeds all but one game in common.
    """
    words = np.random.SeedSequence(seed, spawn_key=(steps,)).generate_state(count)
    return words.astype(np.int64) >> 1


def meant(joystick: Sequence[str], legal: Sequence[str]) -> np.ndarray:
    """For each action of the joystick its place among the legal ones, int64.

    A game without a button (skiing, alone among the 57) takes 9 actions at most; there the other 9 of the
    joystick are those without the button.

    >>> meant(["NOOP", "FIRE", "UP", "UPFIRE"], legal=["NOOP", "UP"]).tolist()
    [0, 0, 1, 1]
    """
    places = {name: place for place, name in enumerate(legal)}
    return np.array([places[n if n in places else n.replace("FIRE", "") or "NOOP"] for n in joystick])


def single_player() -> tuple[str, ...]:
    """The ROMs that one can play alone, the 57 among them, in alphabetical order."""
    return tuple(sorted(set(_ale_py().roms.get_all_rom_ids()) - TWO_PLAYERS))


def _ale_py() -> Any:
    """The package with its vector environment, which it leaves out where gymnasium is missing."""
    try:
        import ale_py
        import ale_py.roms
        from ale_py import AtariVectorEnv  # noqa: F401
    except ImportError as error:
        raise ValueError(
            'Atari games need ale-py and gymnasium: pip install "normalize-and-project[rainbow]"; '
            'the game "catch" needs neither'
        ) from error
    return ale_py
