"""Games: one contract for all kinds of them, and their names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec

import numpy as np
import pytest

from nap.lab.loops.rainbow.atari import GAMES, Atari
from nap.lab.loops.rainbow.catch import Catch
from nap.lab.loops.rainbow.games import MINATAR, Games, Step, make, names
from nap.lab.loops.rainbow.minatar import MinAtar
from tiny_agents import on_disk_and_back, play

COUNT = 2
KINDS: dict[str, Callable[[], Games]] = {
    "catch": lambda: Catch(COUNT, side=12),
    "pong, cut off early": lambda: Atari("pong", COUNT, threads=2, frame_cap=48),
    "breakout": lambda: Atari("breakout", COUNT, threads=2),
}
STEPS = {"catch": 150, "pong, cut off early": 30, "breakout": 140}  # each sees all its games end
LIFELESS = ("pong", "minatar")
if find_spec("minatar") is not None:
    KINDS |= {
        "minatar/space_invaders": lambda: MinAtar("minatar/space_invaders", COUNT),
        "minatar/asterix": lambda: MinAtar("minatar/asterix", COUNT, full_actions=True),
    }
    STEPS |= {"minatar/space_invaders": 200, "minatar/asterix": 200}


@dataclass
class Played:
    """Games that began with seed 1, and what they did: made once a kind, since ale-py takes its time."""

    kind: str
    games: Games
    begun: np.ndarray
    actions: np.ndarray
    steps: list[Step]

    def again(self, steps: int | None = None, games: Games | None = None) -> list[Step]:
        """What the same actions do when the games, or others, are reset."""
        games = games or self.games
        assert np.array_equal(games.reset(seed=1), self.begun)
        return play(games, self.actions[:steps])


@pytest.fixture(scope="module", params=KINDS)
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    games = KINDS[request.param]()
    begun = games.reset(seed=1)
    # actions 0 and 1: in breakout nothing and serve, which soon loses
    actions = np.random.default_rng(0).integers(2, size=(STEPS[request.param], COUNT))
    yield Played(request.param, games, begun, actions, play(games, actions))
    games.close()


@pytest.fixture
def games(played: Played) -> Games:
    return played.games


def same(some: Step, others: Step) -> bool:
    return all(
        np.array_equal(getattr(some, field.name), getattr(others, field.name)) for field in fields(Step)
    )


def all_same(some: list[Step], others: list[Step]) -> bool:
    return all(same(a, b) for a, b in zip(some, others, strict=True))


# ---- the contract -----------------------------------------------------------------------------------------


def test_shapes_and_types(played: Played) -> None:
    games, step = played.games, played.steps[-1]
    for frames in (played.begun, step.frames, games.frames):
        assert (frames.shape, frames.dtype) == ((COUNT, *games.shape), np.uint8)
    assert games.count == COUNT
    assert (step.scores.shape, step.scores.dtype) == ((COUNT,), np.float32)
    for flags in (step.ended, step.terminal, step.life_lost, step.first):
        assert (flags.shape, flags.dtype) == ((COUNT,), np.bool_)


def test_how_episodes_end_and_begin(played: Played) -> None:
    """What flags go together, and that the step after an end is the first of an episode, and no other."""
    before = np.zeros(COUNT, bool)
    for step in played.steps:
        assert np.array_equal(step.first, before)
        assert not (step.terminal & ~step.ended).any()
        assert not (step.life_lost & step.ended).any()
        for flags in (step.ended, step.life_lost, step.scores != 0):
            assert not (flags & step.first).any()
        before = step.ended
    ended = np.sum([step.ended for step in played.steps], axis=0)
    terminal = np.sum([step.terminal for step in played.steps], axis=0)
    assert (ended >= 1).all()
    assert (terminal == (0 if "pong" in played.kind else ended)).all()
    lost = np.sum([step.life_lost for step in played.steps])
    assert (lost == 0) == played.kind.startswith(LIFELESS)  # which have no lives


def test_the_action_after_an_end_is_ignored(played: Played) -> None:
    first = np.stack([step.first for step in played.steps])
    assert first.any()
    others = replace(played, actions=np.where(first, played.games.actions - 1, played.actions))
    assert all_same(others.again(), played.steps)


def test_seeds_reproduce(played: Played) -> None:
    """In games that were played before and in new ones; another seed gives other episodes."""
    assert all_same(played.again(), played.steps)
    fresh = KINDS[played.kind]()
    assert all_same(played.again(games=fresh), played.steps)
    fresh.reset(seed=2)
    assert not all_same(play(fresh, played.actions), played.steps)
    fresh.close()


def test_a_game_hears_its_own_action_alone(played: Played) -> None:
    actions = played.actions.copy()
    actions[:, 1] = played.games.actions - 1
    steps = replace(played, actions=actions).again()
    until = next(turn for turn, step in enumerate(played.steps) if step.ended.any())
    equal = [
        [np.array_equal(ours.frames[game], theirs.frames[game]) for game in range(COUNT)]
        for ours, theirs in zip(steps[:until], played.steps[:until], strict=True)
    ]
    assert np.all(equal, axis=0).tolist() == [True, False]


def test_steps_belong_to_the_caller(played: Played) -> None:
    """No later step writes to what was returned, and the games do not read it again."""
    kept = [[getattr(step, field.name).copy() for field in fields(Step)] for step in played.again()]
    games = played.games
    games.reset(seed=1)
    returned = []
    for actions, before in zip(played.actions, played.steps, strict=True):
        games.send(actions)
        step = games.recv()
        assert same(step, before)
        returned.append(step)
        games.frames[:] = 9
        assert np.array_equal(games.frames, before.frames)
    assert all_same(returned, [Step(*arrays) for arrays in kept])
    last = returned[-1]
    shown = last.frames.copy()
    last.frames[:] = 7
    last.ended[:] = ~last.ended
    assert np.array_equal(games.frames, shown)
    games.send(played.actions[0])
    assert np.array_equal(games.recv().first, ~last.ended)


def test_actions_are_read_when_sent_and_reset_forgets_them(played: Played) -> None:
    games, buffer = played.games, np.empty(COUNT, np.int64)
    games.send(np.full(COUNT, games.actions - 1))
    games.reset(seed=1)
    for actions, before in zip(played.actions, played.steps, strict=True):
        buffer[:] = actions
        games.send(buffer)
        buffer[:] = games.actions - 1
        assert same(games.recv(), before)


def test_the_order_of_calls_is_guarded(games: Games) -> None:
    with pytest.raises(ValueError, match=r"send\(\) actions first"):
        games.recv()
    games.send(np.zeros(COUNT, np.int64))
    with pytest.raises(ValueError, match=r"recv\(\) it before the next send\(\)"):
        games.send(np.zeros(COUNT, np.int64))
    with pytest.raises(ValueError, match=r"recv\(\) it before the state is saved"):
        games.state_dict()
    games.recv()


def test_actions_are_checked(games: Games) -> None:
    for actions in (np.zeros(COUNT + 1, np.int64), np.zeros((COUNT, 1), np.int64), np.zeros(COUNT)):
        with pytest.raises(ValueError, match="2 games take 2 whole numbers"):
            games.send(actions)
    for outside in (-1, games.actions):
        with pytest.raises(ValueError, match=f"actions go from 0 to {games.actions - 1}"):
            games.send(np.array([0, outside]))
    games.send(np.zeros(COUNT, np.uint8))  # nothing was begun, and any whole numbers will do
    games.recv()


def test_resuming(played: Played) -> None:
    """Exactly where the games can; else with episodes that are new, and the same each time."""
    games, half = played.games, len(played.actions) // 2
    played.again(half)
    state = games.state_dict()
    from_file = on_disk_and_back(state)
    rest = played.actions[half:]
    resumed = []
    play(games, rest)  # changes nothing in what was saved
    for other, saved in ((games, state), (KINDS[played.kind](), from_file)):
        other.load_state_dict(saved)
        if games.saves_exactly:
            assert np.array_equal(other.frames, played.steps[half - 1].frames)
        resumed.append(play(other, rest))
        assert all_same(resumed[-1], played.steps[half:]) is games.saves_exactly
    assert all_same(*resumed)
    if not games.saves_exactly:
        assert not resumed[0][0].first.any()
        assert not all_same(resumed[0], played.steps[: len(rest)])
    other.close()


# ---- names ------------------------------------------------------------------------------------------------


def test_games_by_name() -> None:
    assert isinstance(make("catch", 2), Catch)
    pong = make("pong", 2, full_actions=True, threads=1)
    assert isinstance(pong, Atari)
    assert (pong.count, pong.actions, pong.game) == (2, 18, "pong")
    assert {"catch", *MINATAR, *GAMES} < set(names())


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("MsPacman", "ms_pacman"), ("cacth", "catch"), ("PONG", "pong"), ("ALE/Breakout-v5", "breakout")],
)
def test_an_unknown_name(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"no game '{name}' .* names are .*{nearest}.*; .*names.. lists all"):
        make(name, 1)


@pytest.mark.parametrize("name", ["combat", "joust", "maze_craze", "warlords"])
def test_games_for_two_are_refused(name: str) -> None:
    """ale-py would end the process."""
    with pytest.raises(ValueError, match=f"no game '{name}' for one player"):
        make(name, 1)


@pytest.mark.parametrize("missing", ["ale_py", "ale_py.roms"])
def test_without_ale_py(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ValueError, match=r'pip install "normalize-and-project\[rainbow\]"'):
        make("pong", 1)
    assert make("catch", 1).count == 1
