"""Prioritised n-step replay on the device: every frame is stored once and stacked when it is sampled.

N environments that step together have a row each of one ring. Slot t of a row holds frame t, the action taken
there, its reward and discount, and whether the episode ended with it. A transition is a slot from which n
steps are known, or fewer at the end of an episode; it can be sampled until its stack of frames begins to be
overwritten. The last frame of an episode fills a slot, too, without an action.

K agents that step together can share one replay (`agents`): every tensor then has an axis of agents in front,
each agent samples its own transitions, and `agent(k)` is agent k's part as a replay.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

NEVER = -1.0  # the mass of a slot that cannot be sampled
_TINY = torch.finfo(torch.float64).tiny
_BELOW_ONE = 1 - 1e-15  # keeps a draw inside a sum that was rounded
BLOCK = 1024  # slots whose masses are summed up before a draw looks at single ones


@dataclass(frozen=True)
class Outcome:
    """What N games did with N actions, each (N,) but for the frames; of K agents each (K, N)."""

    rewards: Tensor
    discounts: Tensor  # 0 where a life or the game was lost
    ended: Tensor  # bool: the episode ended; `frames` has its last frame
    first: Tensor  # bool: the action was ignored, and `frames` has the first frame of a new episode
    frames: Tensor  # uint8 (N, *shape)


@dataclass(frozen=True)
class Batch:
    """Transitions, each with the probability it was drawn with; of K agents with an axis more in front."""

    states: Tensor  # uint8 (B, stack, *shape)
    actions: Tensor  # int64 (B,)
    rewards: Tensor  # (B,): the discounted sum of up to n
    discounts: Tensor  # (B,): what the value of the next state counts, 0 where a life or the game was lost
    next_states: Tensor  # uint8 (B, stack, *shape)
    slots: Tensor  # int64 (B,): where they lie in the agent's memory, for `update_`
    probabilities: Tensor  # float64 (B,)


class Replay:
    """A ring of `length` slots for each of `num_envs` environments.

    Args:
        priority_exponent: a transition is drawn in proportion to priority^priority_exponent.
        uniform: share of draws in which all are alike.
        agents: how many share it; 0 for one agent and no axis for it.
    """

    def __init__(
        self,
        num_envs: int,
        length: int,
        shape: tuple[int, ...],
        *,
        stack: int = 4,
        steps: int = 3,
        priority_exponent: float = 0.5,
        uniform: float = 1e-3,
        agents: int = 0,
        device: torch.device | None = None,
    ):
        if length < 2 * (stack + steps):
            raise ValueError(f"{length} slots a game are too few: at least {2 * (stack + steps)} are needed")
        if not 0 < uniform <= 1:
            raise ValueError(
                f"uniform is {uniform}; without a share above 0 nothing of priority 0 can be drawn"
            )
        self.num_envs, self.length, self.stack, self.steps = num_envs, length, stack, steps
        self.priority_exponent, self.uniform = priority_exponent, uniform
        self.agents = agents
        apart = (agents,) if agents else ()

        def per_slot(dtype: torch.dtype, *more: int) -> Tensor:
            return torch.zeros(*apart, num_envs, length, *more, dtype=dtype, device=device)

        self.frames = per_slot(torch.uint8, *shape)
        self.actions = per_slot(torch.uint8)
        self.rewards, self.discounts = per_slot(torch.float32), per_slot(torch.float32)
        self.first, self.ended, self.idle = (per_slot(torch.bool) for _ in range(3))
        blocks = -(-num_envs * length // BLOCK)
        self._blocks = torch.full((*apart, blocks, BLOCK), NEVER, dtype=torch.float32, device=device)
        slots = self._blocks.flatten(-2)[..., : num_envs * length]
        self.mass = slots.unflatten(-1, (num_envs, length))  # a view
        self.largest = torch.ones(apart, dtype=torch.float32, device=device)  # the largest priority seen
        self.head = torch.zeros(apart, dtype=torch.int64, device=device)  # the slot of the newest frames

    def agent(self, k: int) -> Replay:
        """Agent k's part, which shares its memory with the whole."""
        one = copy.copy(self)
        one.agents, one._blocks = 0, self._blocks[k]
        for name, tensor in self.tensors.items():
            setattr(one, name, tensor[k])
        return one

    @property
    def axis(self) -> int:
        return 2 if self.agents else 1

    @property
    def here(self) -> Tensor:
        """The slot of the newest frames (1,): agents step together, so it is the same for all."""
        return self.head.view(-1)[:1]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that changes."""
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {name: value for name, value in public.items() if isinstance(value, Tensor)}

    @property
    def small_tensors(self) -> list[Tensor]:
        """All but the frames: a graph's trial steps write frames that no slot shows."""
        return [tensor for name, tensor in self.tensors.items() if name != "frames"]

    def clear_(self) -> None:
        self.mass.fill_(NEVER)
        self.largest.fill_(1.0)
        self.head.zero_()

    def begin_(self, frames: Tensor) -> None:
        """Store the first frames (N, *shape) of all games. Earlier episodes stay, the last without an end."""
        self.idle.index_fill_(self.axis, self.here, True)
        self.ended.index_fill_(self.axis, self.here, False)
        self._advance_(frames, torch.ones(self.mass.shape[:-1], dtype=torch.bool, device=frames.device))

    def add_(self, actions: Tensor, outcome: Outcome) -> None:
        """Store one step of all games: the actions at the newest frames, and their outcome."""
        for store, value in (
            (self.actions, actions),
            (self.rewards, outcome.rewards),
            (self.discounts, outcome.discounts),
            (self.ended, outcome.ended),
            (self.idle, outcome.first),
        ):
            store.index_copy_(self.axis, self.here, value.unsqueeze(-1).to(store.dtype))
        self._make_ready_()
        self._advance_(outcome.frames, outcome.first)

    def _advance_(self, frames: Tensor, first: Tensor) -> None:
        self.head.copy_((self.head + 1) % self.length)
        self.frames.index_copy_(self.axis, self.here, frames.unsqueeze(self.axis))
        self.first.index_copy_(self.axis, self.here, first.unsqueeze(-1))
        # The last slot whose stack reaches back to the frame just overwritten; those before it are gone.
        self.mass.index_fill_(self.axis, (self.here + self.stack - 1) % self.length, NEVER)

    def _make_ready_(self) -> None:
        """Transitions that became complete with the step just written get the largest priority seen."""
        new = (self.largest**self.priority_exponent).unsqueeze(-1)
        open_ = torch.ones(self.mass.shape[:-1], dtype=torch.bool, device=self.mass.device)
        ended_now = self._at(self.ended, 0)
        for back in range(self.steps):
            if back:
                open_ &= ~self._at(self.ended, back)  # an end in between: those before it were ready then
            ready = open_ & ~self._at(self.idle, back)
            if back < self.steps - 1:
                ready &= ended_now
            open_ &= ~self._at(self.idle, back)
            slot = (self.here - back).remainder(self.length)
            old = self.mass.index_select(self.axis, slot).squeeze(-1)
            self.mass.index_copy_(self.axis, slot, torch.where(ready, new, old).unsqueeze(-1))

    def _at(self, store: Tensor, back: int) -> Tensor:
        slot = (self.here - back).remainder(self.length)
        return store.index_select(self.axis, slot).squeeze(-1)

    def count(self) -> int:
        """How many transitions can be sampled; waits for the device."""
        return int((self.mass >= 0).sum())

    def newest(self) -> Tensor:
        """The stacks of frames that the games show now, (N, stack, *shape)."""
        num_envs = torch.arange(self.first.shape[:-1].numel(), device=self.mass.device)
        return self._stacks(num_envs, self.here.expand(len(num_envs))).unflatten(0, self.first.shape[:-1])

    def sample(self, size: int, generator: Generator | None = None) -> Batch:
        """Draw `size` transitions, with replacement. Of one agent."""
        return self.draw(self.uniform_numbers(size, generator))

    def uniform_numbers(self, size: int, generator: Generator | None = None) -> Tensor:
        """Uniform numbers for `draw`, in float64: a million transitions share the interval."""
        return torch.rand(size, generator=generator, dtype=torch.float64, device=self.mass.device)

    def draw(self, u: Tensor) -> Batch:
        """The transitions where these numbers (B,) or (K, B) fall, by each transition's probability.

        First the block of slots, then the slot in it: one pass over all masses, and that in float32.
        """
        priority, ready = self._blocks.clamp(min=0), self._blocks >= 0
        masses, counts = priority.sum(-1, dtype=torch.float64), ready.sum(-1).double()
        per_mass = (1 - self.uniform) / masses.sum(-1, keepdim=True).clamp(min=_TINY)  # all may be zero
        per_slot = self.uniform / counts.sum(-1, keepdim=True)
        of_blocks = per_mass * masses + per_slot * counts
        sums = of_blocks.cumsum(-1)
        total = sums[..., -1:]
        at = (u * total).minimum(total * _BELOW_ONE)
        last = sums.shape[-1] - 1  # beyond it fall draws that are not a number
        block = torch.searchsorted(sums, at, right=True).clamp(max=last)
        row = block + self._offsets(sums.shape[-1])  # among the blocks of all agents
        chosen = priority.flatten(0, -2)[row].double(), ready.flatten(0, -2)[row].double()
        of_slots = per_mass.unsqueeze(-1) * chosen[0] + per_slot.unsqueeze(-1) * chosen[1]
        inner = of_slots.cumsum(-1)
        at = (at - sums.gather(-1, block) + of_blocks.gather(-1, block)).clamp(min=0).unsqueeze(-1)
        place = (inner <= at.minimum(inner[..., -1:] * _BELOW_ONE)).sum(-1, keepdim=True)
        probabilities = of_slots.gather(-1, place).squeeze(-1) / total
        return self._transitions(block * BLOCK + place.squeeze(-1), probabilities)

    def update_(self, slots: Tensor, priorities: Tensor) -> None:
        masses = (priorities**self.priority_exponent).to(self.mass.dtype)
        places = slots + self._offsets(self._blocks.shape[-2] * BLOCK)
        self._blocks.view(-1).index_copy_(0, places.flatten(), masses.flatten())
        self.largest.copy_(torch.maximum(self.largest, priorities.amax(-1)))

    def _offsets(self, size: int) -> Tensor | int:
        """Where each agent's part begins, (K, 1), if a part has `size` entries."""
        return torch.arange(self.agents, device=self.mass.device).unsqueeze(1) * size if self.agents else 0

    def state_dict(self) -> dict[str, Any]:
        return dict(self.tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])

    def _transitions(self, slots: Tensor, probabilities: Tensor) -> Batch:
        places = (slots + self._offsets(self.num_envs * self.length)).flatten()
        num_envs, start = places // self.length, places % self.length
        stored = (self.actions, self.rewards, self.discounts, self.ended)
        actions_at, rewards_at, discounts_at, ended_at = (t.view(-1, self.length) for t in stored)
        at = start
        rewards = torch.zeros_like(start, dtype=self.rewards.dtype)
        discounts = torch.ones_like(rewards)
        going = torch.ones_like(start, dtype=torch.bool)
        for _ in range(self.steps):
            rewards = rewards + going * discounts * rewards_at[num_envs, at]
            discounts = torch.where(going, discounts * discounts_at[num_envs, at], discounts)
            ended = ended_at[num_envs, at]
            at = torch.where(going, (at + 1) % self.length, at)
            going = going & ~ended
        return Batch(
            states=self._stacks(num_envs, start).unflatten(0, slots.shape),
            actions=actions_at[num_envs, start].long().view(slots.shape),
            rewards=rewards.view(slots.shape),
            discounts=discounts.view(slots.shape),
            next_states=self._stacks(num_envs, at).unflatten(0, slots.shape),
            slots=slots,
            probabilities=probabilities,
        )

    def _stacks(self, num_envs: Tensor, at: Tensor) -> Tensor:
        """The last frames of the episode up to `at` (B,), oldest first, then zeros if they are too few."""
        places = torch.arange(self.stack, device=at.device)
        back = (at.unsqueeze(1) - places).remainder(self.length)  # newest first
        begun = self.first.view(-1, self.length)[num_envs.unsqueeze(1), back].int()
        shown = ((begun.cumsum(1) - begun) == 0).sum(1, keepdim=True)  # up to the episode's first frame
        index = (at.unsqueeze(1) - shown + 1 + places).remainder(self.length)
        frames = self.frames.flatten(0, self.axis - 1)[num_envs.unsqueeze(1), index]
        seen = places < shown
        return frames * seen.view(*seen.shape, *[1] * (frames.ndim - 2))
