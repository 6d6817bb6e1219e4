"""The replay against a slow one that keeps whole episodes, its draws against their exact probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nap.lab.loops.rainbow.replay import BLOCK, NEVER, Outcome, Replay

DISCOUNT = 0.9


@dataclass
class Slot:
    """One frame of a env, and what was done there."""

    frame: int
    first: bool
    action: int = 0
    reward: float = 0.0
    discount: float = 0.0
    ended: bool = False
    idle: bool = True  # nothing known of an action here


Env = list[Slot]


def play(env: Env, rng: np.random.Generator) -> None:
    """One more step of a game in which lives are lost, episodes end and are cut off."""
    here = env[-1]
    if len(env) > 1 and env[-2].ended:
        env.append(Slot(here.frame + 1, first=True))  # the step after an end: its action is ignored
        return
    fate = rng.choice(["goes on", "game over", "cut off", "life lost"], p=[0.6, 0.15, 0.1, 0.15])
    here.action, here.reward = int(rng.integers(5)), float(rng.integers(-1, 2))
    here.discount = 0.0 if fate in ("game over", "life lost") else DISCOUNT
    here.ended, here.idle = fate in ("game over", "cut off"), False
    env.append(Slot(here.frame + 1, first=False))


def outcome(envs: list[Env]) -> tuple[torch.Tensor, Outcome]:
    done, new = [env[-2] for env in envs], [env[-1] for env in envs]
    frames = torch.tensor([slot.frame for slot in new], dtype=torch.uint8)[:, None, None].expand(-1, 2, 3)
    return torch.tensor([slot.action for slot in done]), Outcome(
        rewards=torch.tensor([slot.reward for slot in done]),
        discounts=torch.tensor([slot.discount for slot in done]),
        ended=torch.tensor([slot.ended for slot in done]),
        first=torch.tensor([slot.first for slot in new]),
        frames=frames,
    )


def stack_at(env: Env, at: int, size: int) -> list[int]:
    """Frame numbers of the episode, oldest first, then 0 if they are too few, as DQN Zoo has it."""
    seen: list[int] = []
    for back in range(size):
        seen.insert(0, env[at - back].frame)
        if env[at - back].first:
            break
    return seen + [0] * (size - len(seen))


def transition(env: Env, start: int, steps: int, stack: int) -> tuple | None:
    """State, action, return, discount and next state, or None where they are not all known."""
    if env[start].idle:
        return None
    total, discount, at = 0.0, 1.0, start
    for _ in range(steps):
        if env[at].idle:
            return None
        total += discount * env[at].reward
        discount *= env[at].discount
        at += 1
        if env[at - 1].ended:
            break
    return stack_at(env, start, stack), env[start].action, total, discount, stack_at(env, at, stack)


def replayed(
    count: int, seed: int, *, num_envs: int = 2, length: int = 20, steps: int = 3
) -> tuple[Replay, list[Env]]:
    rng = np.random.default_rng(seed)
    replay = Replay(num_envs, length, (2, 3), steps=steps)
    tapes: list[Env] = [[Slot(0, False), Slot(1, first=True)] for _ in range(num_envs)]
    replay.begin_(torch.ones(num_envs, 2, 3, dtype=torch.uint8))
    for _ in range(count):
        for tape in tapes:
            play(tape, rng)
        replay.add_(*outcome(tapes))
    return replay, tapes


@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 70), seed=st.integers(0, 10_000), steps=st.integers(1, 4))
def test_it_holds_what_a_slow_replay_holds(count: int, seed: int, steps: int) -> None:
    replay, tapes = replayed(count, seed, steps=steps)
    oldest = len(tapes[0]) - 1 - replay.length + replay.stack
    expected = {
        (k, at % replay.length): found
        for k, tape in enumerate(tapes)
        for at in range(max(1, oldest), len(tape))
        if (found := transition(tape, at, steps, replay.stack)) is not None
    }
    slots = (replay.mass.flatten() >= 0).nonzero().flatten()
    assert {divmod(int(slot), replay.length) for slot in slots} == set(expected)
    assert replay.count() == len(expected)
    batch = replay._transitions(slots, torch.ones(len(slots)))
    for i, slot in enumerate(slots):
        state, action, total, discount, after = expected[divmod(int(slot), replay.length)]
        assert batch.states[i, :, 0, 0].tolist() == state
        assert batch.next_states[i, :, 1, 2].tolist() == after
        assert batch.actions[i] == action
        assert batch.rewards[i].item() == pytest.approx(total, abs=1e-6)
        assert batch.discounts[i].item() == pytest.approx(discount, abs=1e-6)


def test_after_forgetting_everything_it_starts_anew() -> None:
    replay, _ = replayed(47, seed=6)
    replay.update_((replay.mass.flatten() >= 0).nonzero().flatten()[:1], torch.tensor([16.0]))
    replay.clear_()
    assert replay.count() == 0
    assert replay.largest == 1
    replay.begin_(torch.ones(2, 2, 3, dtype=torch.uint8))
    tapes: list[Env] = [[Slot(0, False), Slot(1, first=True)] for _ in range(2)]
    rng = np.random.default_rng(8)
    for _ in range(9):
        for tape in tapes:
            play(tape, rng)
        replay.add_(*outcome(tapes))
    ready = sum(transition(tape, at, 3, 4) is not None for tape in tapes for at in range(1, len(tape)))
    assert replay.count() == ready > 0


def test_the_newest_stacks_are_those_the_games_show() -> None:
    replay, tapes = replayed(33, seed=3)
    for k, tape in enumerate(tapes):
        assert replay.newest()[k, :, 0, 0].tolist() == stack_at(tape, len(tape) - 1, 4)


def test_new_episodes_in_the_middle_leave_no_transition_across() -> None:
    """After a resume the games begin anew while the replay goes on."""
    replay, _ = replayed(12, seed=1, length=40)
    before = replay.count()
    replay.begin_(torch.full((2, 2, 3), 100, dtype=torch.uint8))
    assert replay.newest()[0, :, 0, 0].tolist() == [100, 0, 0, 0]
    rng = np.random.default_rng(0)
    fresh: list[Env] = [[Slot(0, False), Slot(100, first=True)] for _ in range(2)]
    for _ in range(8):
        for tape in fresh:
            play(tape, rng)
        replay.add_(*outcome(fresh))
    ready = sum(transition(tape, at, 3, 4) is not None for tape in fresh for at in range(1, len(tape)))
    assert replay.count() == before + ready
    batch = replay.sample(200)
    is_new = [frames[:, 0, 0, 0] >= 100 for frames in (batch.states, batch.next_states)]
    assert is_new[0].any()
    assert torch.equal(*is_new)


def ready_replay(priorities: list[float], uniform: float = 1e-3) -> Replay:
    replay, _ = replayed(18, seed=5, num_envs=1)
    replay.uniform = uniform
    slots = (replay.mass.flatten() >= 0).nonzero().flatten()[: len(priorities)]
    replay.mass.fill_(-1)
    replay.update_(slots, torch.tensor(priorities))
    return replay


def test_transitions_are_drawn_by_their_priorities() -> None:
    """The frequencies of 200,000 draws against the exact probabilities, by a chi-square test."""
    priorities = [0.0, 0.01, 1.0, 4.0, 9.0, 25.0]
    replay = ready_replay(priorities, uniform=0.1)
    mass = np.sqrt(priorities)
    exact = 0.9 * mass / mass.sum() + 0.1 / len(mass)
    generator = torch.Generator().manual_seed(0)
    batches = [replay.sample(100, generator) for _ in range(2_000)]
    drawn, probabilities = (torch.cat([getattr(b, n) for b in batches]) for n in ("slots", "probabilities"))
    slots, counts = drawn.unique(return_counts=True)
    assert len(slots) == len(priorities)  # those of priority 0, too, by the uniform share; no other slot ever
    chi_square = ((counts.numpy() - 200_000 * exact) ** 2 / (200_000 * exact)).sum()
    assert chi_square < 20.5  # 0.1 % at five degrees of freedom
    shares = torch.tensor(exact)[torch.searchsorted(slots, drawn)]
    torch.testing.assert_close(probabilities, shares, rtol=1e-6, atol=0)


@pytest.mark.parametrize("length", [BLOCK // 2, BLOCK + 7, 5 * BLOCK])
def test_draws_fall_where_one_sum_over_all_slots_puts_them(length: int) -> None:
    """With blocks that are full, half full and empty; at the very ends of the interval, too."""
    replay = Replay(3, length, (1, 1))
    generator = torch.Generator().manual_seed(length)
    replay.mass.uniform_(0, 3, generator=generator)
    replay.mass[torch.rand(3, length, generator=generator) < 0.3] = NEVER
    replay.mass[1, length // 4 :] = NEVER
    replay.mass[2, -length // 8 :] = NEVER
    mass = replay.mass.flatten().double()
    ready, priority = (mass >= 0).double(), mass.clamp(min=0)
    shares = 0.999 * priority / priority.sum() + 0.001 * ready / ready.sum()
    u = torch.cat([replay.uniform_numbers(20_000, generator), torch.tensor([0.0, 1 - 2**-53])])
    batch = replay.draw(u)
    torch.testing.assert_close(batch.probabilities, shares[batch.slots])
    assert (ready[batch.slots] == 1).all()
    upper = shares.cumsum(0)[batch.slots]
    assert (u <= upper + 1e-12).all()
    assert (u >= upper - shares[batch.slots] - 1e-12).all()


def test_without_any_priority_all_are_alike() -> None:
    replay = ready_replay([0.0, 0.0, 0.0])
    assert len(replay.sample(100).slots.unique()) == 3
    with pytest.raises(ValueError, match="nothing of priority 0 can be drawn"):
        Replay(1, 50, (2, 3), uniform=0.0)


def test_new_transitions_get_the_largest_priority_seen() -> None:
    replay, tapes = replayed(10, seed=2, num_envs=1)
    assert replay.mass.max() == 1
    replay.update_((replay.mass.flatten() >= 0).nonzero().flatten()[:1], torch.tensor([16.0]))
    rng = np.random.default_rng(1)
    ready = replay.mass >= 0
    for _ in range(4):
        play(tapes[0], rng)
        replay.add_(*outcome(tapes))
    new = (replay.mass >= 0) & ~ready
    assert new.any()
    assert (replay.mass[new] == 4).all()  # √16


def test_it_is_saved_and_taken_up() -> None:
    replay, _ = replayed(30, seed=4)
    other = Replay(2, 20, (2, 3))
    other.load_state_dict({name: tensor.clone() for name, tensor in replay.state_dict().items()})
    one, two = (r.sample(16, torch.Generator().manual_seed(1)) for r in (replay, other))
    assert all(torch.equal(getattr(one, name), getattr(two, name)) for name in vars(one))


def test_a_million_transitions_fit_in_eight_gigabytes() -> None:
    with torch.device("meta"):
        replay = Replay(64, 1_000_000 // 64, (84, 84), device=torch.device("meta"))
    assert sum(tensor.nbytes for tensor in replay.tensors.values()) < 8e9
