"""A turn of acting: what the games did is stored, and the next actions chosen, in one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from nap.lab.loops.common.cuda_graph import capture, compile_static
from nap.lab.loops.rainbow.evaluation import greedy
from nap.lab.loops.rainbow.replay import Outcome, Replay
from nap.lab.models.rainbow_net import RainbowNet


class OnHost:
    """A copy of a tensor of the device, which is sent without waiting."""

    def __init__(self, tensor: Tensor):
        self._tensor = tensor
        self._copy = torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._arrived = torch.cuda.Event(blocking=True) if tensor.is_cuda else None

    def send(self) -> None:
        """Begin to copy what the tensor holds now."""
        self._copy.copy_(self._tensor, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()

    def wait(self) -> np.ndarray:
        """What was sent last, as soon as it is there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy.numpy().copy()


class Actor:
    """Plays with a network, whoever trains it. Nothing here waits for the device but `chosen`.

    Args:
        atoms: the returns that the network's distributions are over.
        generator: of the noise, which is what explores.
    """

    def __init__(
        self,
        net: RainbowNet,
        replay: Replay,
        atoms: Tensor,
        generator: Generator,
        *,
        graph: bool = False,
        compile_: bool = False,
    ):
        self.net, self.replay, self.atoms, self.generator = net, replay, atoms, generator
        device = replay.mass.device
        self.actions = torch.zeros(replay.num_envs, dtype=torch.int64, device=device)
        self.outcome = _empty_outcome(replay)
        self._on_host = OnHost(self.actions)
        self._best = compile_static(self.best) if compile_ else self.best
        self._turn: Callable[[], None] = self._take_in
        if graph:
            self._turn = capture(self._take_in, [*replay.small_tensors, self.actions], [generator])

    def turn(self) -> None:
        """Store `outcome`, what the games did with `actions`, and put the next actions in their place."""
        self._turn()
        self._on_host.send()

    def begin(self) -> None:
        """Actions for the newest states, before any turn."""
        self._act()
        self._on_host.send()

    def best(self, v: Tensor) -> Tensor:
        """The best actions for the newest states, by the mean of their returns; `v` draws the noise."""
        return greedy(self.net, self.replay.newest(), v, self.atoms)

    def chosen(self) -> np.ndarray:
        """The actions, as soon as the device has them; it does not wait for updates begun since."""
        return self._on_host.wait()

    def state_dict(self) -> dict[str, Any]:
        return {"actions": self.actions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.actions.copy_(state["actions"])
        self._on_host.send()

    @torch.no_grad()
    def _take_in(self) -> None:
        self.replay.add_(self.actions, self.outcome)
        self._act()

    @torch.no_grad()
    def _act(self) -> None:
        self.actions.copy_(self._best(self.net.uniform_numbers(self.replay.num_envs, self.generator)))


def _empty_outcome(replay: Replay) -> Outcome:
    num_envs, device = replay.num_envs, replay.mass.device
    rewards, discounts = torch.zeros(num_envs, device=device), torch.zeros(num_envs, device=device)
    ended, first = (torch.zeros(num_envs, dtype=torch.bool, device=device) for _ in range(2))
    return Outcome(rewards, discounts, ended, first, torch.zeros_like(replay.frames[:, 0]))
