"""The actor of one agent or of a stack: what the environments did is stored, the next actions are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from nap.lab.loops.common.cuda_graph import capture, compile_static
from nap.lab.loops.rainbow.games import Step
from nap.lab.loops.rainbow.replay import Outcome, Replay

Policy = Callable[[Tensor, Tensor], Tensor]  # states, and uniform numbers for the noise → actions


class Actor:
    """Acts in the environments by a policy. Nothing here waits for the device but `chosen`.

    Args:
        noise_size: uniform numbers that the noise of one action takes; the noise is what explores.
        generators: of these numbers, one for each agent.
        shared: actions and outcomes of a stack of agents, where they lie already.
        graph: storing and acting are one CUDA graph.
    """

    def __init__(
        self,
        replay: Replay,
        policy: Policy,
        noise_size: int,
        generators: Sequence[Generator],
        *,
        shared: tuple[Tensor, Outcome] | None = None,
        graph: bool = False,
        compile_: bool = False,
    ):
        self.replay, self.policy, self.generators = replay, policy, list(generators)
        self.actions, self.outcome = shared or _empty(replay)
        self._noise = torch.zeros(*self.actions.shape, noise_size, device=self.actions.device)
        self._on_host = OnHost(self.actions)
        self._greedy_actions = compile_static(self.greedy_actions) if compile_ else self.greedy_actions
        self._turn: Callable[[], None] = self._store_and_act
        if graph:
            self._turn = capture(self._store_and_act, [*replay.small_tensors, self.actions], self.generators)

    def turn(self) -> None:
        """Store `outcome`, what the games did with `actions`, and choose the next actions."""
        self._turn()
        self._on_host.send()

    def begin(self) -> None:
        """Choose actions for the newest states, before any turn."""
        self._act()
        self._on_host.send()

    def send(self) -> None:
        self._on_host.send()

    def chosen(self) -> np.ndarray:
        """The actions, as soon as the device has them; it does not wait for updates begun since."""
        return self._on_host.wait()

    def receive(self, step: Step, discount: float) -> None:
        """Copy a step of the games into `outcome`, without waiting for it."""
        for value, target in (
            (np.clip(step.scores, -1, 1), self.outcome.rewards),
            (discounts_of(step, discount), self.outcome.discounts),
            (step.ended, self.outcome.ended),
            (step.first, self.outcome.first),
            (step.frames, self.outcome.frames),
        ):
            tensor = torch.from_numpy(np.ascontiguousarray(value))
            target.copy_(tensor.pin_memory() if target.is_cuda else tensor, non_blocking=True)

    @torch.no_grad()
    def greedy_actions(self, u: Tensor) -> Tensor:
        return self.policy(self.replay.newest(), u)

    def state_dict(self) -> dict[str, Any]:
        return {"actions": self.actions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.actions.copy_(state["actions"])
        self._on_host.send()

    @torch.no_grad()
    def _store_and_act(self) -> None:
        self.replay.add_(self.actions, self.outcome)
        self._act()

    @torch.no_grad()
    def _act(self) -> None:
        fill_uniform_(self._noise, self.generators)
        self.actions.copy_(self._greedy_actions(self._noise))


class OnHost:
    """A copy of a tensor of the device, which is sent without waiting."""

    def __init__(self, tensor: Tensor):
        self._tensor = tensor
        self._copy = torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._arrived = torch.cuda.Event(blocking=True) if tensor.is_cuda else None

    def send(self) -> None:
        self._copy.copy_(self._tensor, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()

    def wait(self) -> np.ndarray:
        """What was sent last, as soon as it is there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy.numpy().copy()


def fill_uniform_(numbers: Tensor, generators: Sequence[Generator]) -> None:
    """Fill each agent's part of a tensor with uniform numbers from that agent's generator."""
    for part, generator in zip(numbers.view(len(generators), -1), generators, strict=True):
        torch.rand(part.shape, generator=generator, out=part)


def discounts_of(step: Step, discount: float) -> np.ndarray:
    """0 where the game is over or a life was lost; an episode that is cut off keeps its future."""
    return discount * (~(step.terminal | step.life_lost)).astype(np.float32)


def _empty(replay: Replay) -> tuple[Tensor, Outcome]:
    num_envs, device = replay.num_envs, replay.mass.device
    rewards, discounts = torch.zeros(num_envs, device=device), torch.zeros(num_envs, device=device)
    ended, first = (torch.zeros(num_envs, dtype=torch.bool, device=device) for _ in range(2))
    actions = torch.zeros(num_envs, dtype=torch.int64, device=device)
    return actions, Outcome(rewards, discounts, ended, first, torch.zeros_like(replay.frames[:, 0]))
