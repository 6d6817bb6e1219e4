"""One update of Rainbow, and one turn of acting: each a CUDA graph where there is CUDA."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor

from nap.lab.models.rainbow_net import noise_of
from nap.lab.rainbow import c51
from nap.lab.rainbow.evaluation import greedy
from nap.lab.rainbow.replay import Batch, Outcome, Replay
from nap.lab.rainbow.settings import Agent
from nap.lab.rainbow.variants import Built
from nap.lab.runs.work import NotFinite
from nap.lab.training.graph import captured, compiled, side_by_side
from nap.lab.training.guard import Guard

PRIORITY_LIMIT = 100.0
F = TypeVar("F", bound=Callable[..., Any])


class Learner:
    """A network that learns from a replay, its target network, and what both need on the device.

    Nothing here waits for the device but `chosen`, `check` and `read`.
    """

    def __init__(
        self, built: Built, replay: Replay, settings: Agent, *, graph: bool = False, compile_: bool = False
    ):
        self.online = built.net
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.projector, self.replay, self.settings = built.projector, replay, settings
        device = replay.mass.device
        some = next(self.online.parameters())
        self.atoms = c51.support(settings.atoms, settings.limit, some)
        self.rate = torch.tensor(settings.learning_rate, device=device)
        self.correction = torch.tensor(settings.correction, dtype=torch.float64, device=device)
        self.generator = Generator(device)
        self.optimizer = torch.optim.Adam(
            self.online.parameters(),
            self.rate,
            eps=settings.adam_eps,
            fused=True,
            capturable=device.type == "cuda",
        )
        self._guard = Guard(1, device)
        self.optimizer.found_inf = self._guard.broken  # type: ignore[attr-defined]
        self.optimizer.grad_scale = self._too_long = torch.ones((), device=device)  # type: ignore[attr-defined]
        count = 1 + len(list(self.online.parameters()))
        self._culprits = torch.zeros(count, dtype=torch.bool, device=device)  # the loss, then each gradient
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._sums = torch.zeros(2, device=device)
        self.actions = torch.zeros(replay.lanes, dtype=torch.int64, device=device)
        self._announced = torch.zeros(replay.lanes, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._arrived = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        self.outcome = _empty_outcome(replay)
        self.updates = 0
        self._sides = [torch.cuda.Stream(device) for _ in range(2)] if device.type == "cuda" else []
        prepared = compiled if compile_ else _as_it_is
        self._draw, self._weighed = prepared(replay.draw), prepared(self.weighed)
        self._best, self._values, self._taken = (prepared(f) for f in (self.best, self.values, self.taken))
        self._best_now = prepared(self.best_now)
        self._update, self._turn = self._prepared(graph)

    def update(self, rate: float, correction: float) -> None:
        """Learn from one batch."""
        self.rate.fill_(rate)
        self.correction.fill_(correction)
        self._update()
        self.updates += 1
        if self.updates % self.settings.target_every == 0:
            self.copy_to_target_()

    # What follows, up to `weighed`, has no effects: each can be compiled as a whole.

    def taken(self, states: Tensor, actions: Tensor, v: Tensor) -> Tensor:
        """The network's log-probabilities of returns for actions that were taken; `v` draws its noise."""
        return c51.taken(self.online(states, noise_of(v)), actions)

    @torch.no_grad()
    def values(self, states: Tensor, v: Tensor) -> Tensor:
        """What the target network says of states."""
        return self.target(states, noise_of(v))

    @torch.no_grad()
    def best(self, states: Tensor, v: Tensor) -> Tensor:
        """The network's choice of actions."""
        return greedy(self.online, states, v, self.atoms)

    def best_now(self, v: Tensor) -> Tensor:
        """Its choice for the newest states; noise is what explores."""
        return self.best(self.replay.newest(), v)

    @torch.no_grad()
    def weighed(
        self, taken: Tensor, values: Tensor, best: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The weighted mean loss of a batch, the loss of each transition, and the gradient for `taken`."""
        targets = c51.double_q_targets(batch.rewards, batch.discounts, best, values, self.atoms)
        weights = importance_weights(batch.probabilities, self.correction).to(targets.dtype) / len(best)
        losses = -(targets * taken).sum(-1)
        return (weights * losses).sum(), losses, -weights[:, None] * targets

    def turn(self) -> None:
        """Store `outcome`, what the games did with `actions`, and put the next actions in their place."""
        self._turn()
        self._announce()

    def begin(self) -> None:
        """Actions for the newest states, before any turn."""
        self._act_()
        self._announce()

    def chosen(self) -> np.ndarray:
        """The actions, as soon as the device has them; it does not wait for updates begun since."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._announced.numpy().copy()

    def _announce(self) -> None:
        self._announced.copy_(self.actions, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()

    @torch.no_grad()
    def _act_(self) -> None:
        self.actions.copy_(self._best_now(self.online.uniform_numbers(self.replay.lanes, self.generator)))

    @torch.no_grad()
    def copy_to_target_(self) -> None:
        """The target network becomes what the network is now."""
        torch._foreach_copy_(list(self.target.parameters()), list(self.online.parameters()))

    @torch.no_grad()
    def reset_optimizer_(self) -> None:
        """Adam as if it had made no update."""
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def check(self) -> None:
        """Raise where an update was not finite. Waits for the device."""
        if self._guard.broken.item():
            _, step = self._guard.first()
            names = ["the loss", *(f"the gradient of {name}" for name, _ in self.online.named_parameters())]
            which = names[int(self._culprits.int().argmax())]
            raise NotFinite(
                f"{which} is not finite at update {step + 1} of this interval; the update was not made. "
                "Lower --learning-rate, or leave this arm out"
            )

    def read(self) -> dict[str, float]:
        """Means over the updates since the last call."""
        made = max(1, int(self._position))
        loss, gradient = (self._sums / made).tolist()
        self._sums.zero_()
        self._position.zero_()
        return {"loss": loss, "gradient_norm": gradient}

    def state_dict(self) -> dict[str, Any]:
        named = dict(self.online.named_parameters())
        return {
            "online": {name: p.detach() for name, p in named.items()},
            "target": {name: p.detach() for name, p in self.target.named_parameters()},
            "optimizer": {name: dict(self.optimizer.state[p]) for name, p in named.items()},
            "actions": self.actions,
            "updates": self.updates,
            "sums": self._sums,
            "position": self._position,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """In place: a captured graph goes on with these very tensors."""
        for name, parameter in self.online.named_parameters():
            parameter.copy_(state["online"][name])
            for key, value in self.optimizer.state[parameter].items():
                value.copy_(state["optimizer"][name][key])
        for name, parameter in self.target.named_parameters():
            parameter.copy_(state["target"][name])
        self.actions.copy_(state["actions"])
        self._announce()
        self._sums.copy_(state["sums"])
        self._position.copy_(state["position"])
        self.updates = state["updates"]

    def _learn(self) -> None:
        u = self.replay.uniform_numbers(self.settings.batch_size, self.generator)
        v = self.online.uniform_numbers(3, self.generator)
        batch = self._draw(u)
        best, values, taken = side_by_side(
            self._sides,
            lambda: self._best(batch.next_states, v[1:2]),
            lambda: self._values(batch.next_states, v[2:3]),
            lambda: self._taken(batch.states, batch.actions, v[:1]),
        )
        loss, losses, gradient = self._weighed(taken.detach(), values, best, batch)
        self.optimizer.zero_grad(set_to_none=True)
        taken.backward(gradient)
        with torch.no_grad():
            gradients = [p.grad for p in self.online.parameters() if p.grad is not None]
            norms = torch.stack(torch._foreach_norm(gradients))
            norm = torch.linalg.vector_norm(norms)
            bad = ~torch.cat([loss.view(1), norms]).isfinite()
            self._culprits.copy_(torch.where(self._guard.broken > 0, self._culprits, bad))
            self._guard.note_(loss.view(1), norm.view(1), self._position)
            self._too_long.copy_((norm / self.settings.clip).clamp(min=1))  # Adam divides by it
            self._sums += torch.stack([loss, norm])
            self._position += 1
        self.optimizer.step()
        if self.projector is not None:
            self.projector.project_()
        self.replay.update_(batch.slots, losses.clamp(max=PRIORITY_LIMIT))

    @torch.no_grad()
    def _take_in(self) -> None:
        self.replay.add_(self.actions, self.outcome)
        self._act_()

    def _prepared(self, graph: bool) -> tuple[Callable[[], None], Callable[[], None]]:
        """Update and turn, captured where asked; all is as before, but the optimizer has its state."""
        for parameter in self.online.parameters():  # zeros: makes the state that a graph needs
            parameter.grad = torch.zeros_like(parameter)
        before = [p.detach().clone() for p in self.online.parameters()]
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(list(self.online.parameters()), before)
        self.reset_optimizer_()
        if not graph:
            return self._learn, self._take_in
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        own = [
            *self.online.parameters(),
            *moments,
            self._position,
            self._sums,
            self._culprits,
            self._too_long,
            *self._guard.tensors,
        ]
        # All but the frames, which are too many to copy: what trial turns write there no slot shows.
        small = [tensor for name, tensor in self.replay.tensors.items() if name != "frames"]
        self.replay.mass.fill_(1.0)  # something to draw
        update = captured(self._learn, [*own, *small], [self.generator])
        turn = captured(self._take_in, [*small, self.actions], [self.generator])
        self.replay.clear_()
        return update, turn


def importance_weights(probabilities: Tensor, exponent: Tensor) -> Tensor:
    """What makes up for unequal draws, (1/P)^exponent, the largest of the batch being 1.

    The number of transitions, a factor in the usual formula, goes out with that.

    >>> importance_weights(torch.tensor([0.1, 0.4], dtype=torch.float64), torch.tensor(0.5))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    weights = probabilities**-exponent
    return weights / weights.max()


def _as_it_is(function: F) -> F:
    return function


def _empty_outcome(replay: Replay) -> Outcome:
    lanes, device = replay.lanes, replay.mass.device
    rewards, discounts = torch.zeros(lanes, device=device), torch.zeros(lanes, device=device)
    ended, first = (torch.zeros(lanes, dtype=torch.bool, device=device) for _ in range(2))
    return Outcome(rewards, discounts, ended, first, torch.zeros_like(replay.frames[:, 0]))
