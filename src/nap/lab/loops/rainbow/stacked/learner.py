"""One update of K agents, each kernel for all of them; one CUDA graph, where there is CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vmap

from nap.lab.loops.common.cuda_graph import compile_static
from nap.lab.loops.common.nonfinite import MonitorState, monitor_after
from nap.lab.loops.rainbow.learner import Learner, Update
from nap.lab.loops.rainbow.replay import Replay
from nap.lab.loops.rainbow.stacked.blocks import Blocks, share_
from nap.lab.loops.rainbow.stacked.network import StackedNet
from nap.lab.loops.rainbow.stacked.radii import Radii

BETAS = (0.9, 0.999)  # Adam's


class StackedLearner(Update):
    """The updates of several learners, whose tensors become slices of shared ones.

    What is done to one of them between updates (a checkpoint loaded, its optimizer reset, its weights
    measured) is done to its part of the memory. They may differ in seeds, learning rates, projection and
    weight decay. One whose loss or gradient is not finite stops updating, and its `monitor.check()` raises.

    Args:
        replay: of all agents; `replay.agent(k)` is the replay of learner k.
    """

    def __init__(
        self, learners: Sequence[Learner], replay: Replay, *, graph: bool = False, compile_: bool = False
    ):
        first = learners[0]
        self.learners, self.replay, self.settings = list(learners), replay, first.settings
        self.device, self.atoms = first.device, first.atoms
        self.net = StackedNet(first.online)
        _check_alike(learners)
        agents = len(learners)
        self.blocks = Blocks(dict(first.online.named_parameters()), self.net.groups, agents)
        memories = (self.blocks.new() for _ in range(5))
        self.weights, self.gradients, self.target, self.mean, self.square = memories
        self.steps = first.monitor.broken.new_zeros(agents)  # Adam's count of each agent
        for k, learner in enumerate(learners):
            self._adopt_(k, learner)
        self.rates = share_([learner.rate for learner in learners])
        self.importance_exponent = share_([learner.importance_exponent for learner in learners])
        self.monitor = MonitorState(
            *(share_(tensors) for tensors in zip(*(x.monitor.tensors for x in learners), strict=True))
        )
        self.clip_factors = share_([learner.clip_factor for learner in learners])
        self.radii = Radii(learners, self.blocks)
        self._weight_decay = self._of_weight_decay()
        watched_names = [name for name, _ in first.online.named_parameters()]
        self._watched = torch.tensor([self.blocks.names.index(n) for n in watched_names], device=self.device)
        self._trained = {g: self._leaf(self.weights, g).requires_grad_() for g in self.net.groups}
        self._frozen = {g: self._leaf(self.target, g) for g in self.net.groups}
        self._into = [self._leaf(self.gradients, g) for g in self.net.groups]
        self.generators = [learner.generator for learner in learners]
        self._schedule: tuple[tuple[float, ...], float] | None = None
        self._step_ = compile_static(self.step_) if compile_ else self.step_
        self._prepare_(first.online.noise_size, agents, graph=graph, compile_=compile_)

    @property
    def updates(self) -> int:
        return self.learners[0].updates

    def update(self, rates: Sequence[float], importance_exponent: float) -> None:
        """Each agent learns from a batch of its own, at its own rate."""
        schedule = (tuple(rates), importance_exponent)
        if self._schedule != schedule:
            if len(set(rates)) == 1:
                self.rates.fill_(rates[0])
            else:
                for learner, rate in zip(self.learners, rates, strict=True):
                    learner.rate.fill_(rate)
            self.importance_exponent.fill_(importance_exponent)
            self._schedule = schedule
        self._update()
        for learner in self.learners:
            learner.updates += 1
        every = self.learners[0].project_every_updates
        if every > 1 and self.updates % every == 0:
            self.radii.project_(self.weights)
        if self.updates % self.settings.target_every == 0:
            self.target.copy_(self.weights)

    def logits(self, states: Tensor, u: Tensor) -> Tensor:
        return self.net(self._trained, states, u)

    @torch.no_grad()
    def target_logits(self, states: Tensor, u: Tensor) -> Tensor:
        return self.net(self._frozen, states, u)

    @torch.no_grad()
    def step_(self, losses: Tensor) -> None:
        """Record losses and gradient norms; clip, make a step of Adam and project."""
        norms = self.blocks.squares(self.gradients).sqrt().mT[:, self._watched].to(losses.dtype)
        state, norm = vmap(monitor_after)(self.monitor, losses, norms)
        for tensor, value in zip(self.monitor, state, strict=True):
            tensor.copy_(value)
        self.clip_factors.copy_((norm / self.settings.clip).clamp(min=1))
        self._adam_()
        if self.learners[0].project_every_updates == 1:
            self.radii.project_(self.weights)

    def _step(self, log_probabilities: Tensor, gradient: Tensor, loss: Tensor) -> None:
        gradients = torch.autograd.grad(log_probabilities, list(self._trained.values()), gradient)
        with torch.no_grad():
            torch._foreach_copy_(self._into, gradients)
        self._step_(loss)

    def _changing(self) -> list[Tensor]:
        return [self.weights, self.mean, self.square, self.steps, self.clip_factors, *self.monitor]

    def _adam_(self) -> None:
        finite = self.monitor.broken == 0
        self.steps.add_(finite)
        of, dtype = self.blocks.of_agents, self.weights.dtype
        correction1, correction2 = (1 - beta ** self.steps.double() for beta in BETAS)
        gradient = self.gradients / of(self.clip_factors)
        mean = self.mean + (1 - BETAS[0]) * (gradient - self.mean)
        square = BETAS[1] * self.square + (1 - BETAS[1]) * gradient * gradient
        denominator = square.sqrt() / of(correction2.sqrt().to(dtype)) + self.settings.adam_eps
        weights = self.weights
        if self._weight_decay is not None:
            weights = weights * (1 - of(self.rates) * self._weight_decay)
        weights = weights - of((self.rates.double() / correction1).to(dtype)) * mean / denominator
        for old, new in ((self.mean, mean), (self.square, square), (self.weights, weights)):
            old.copy_(torch.where(of(finite), new, old))

    def _adopt_(self, k: int, learner: Learner) -> None:
        """Move what the agent learns with into the memories."""
        online = dict(learner.online.named_parameters())
        state = {name: learner.optimizer.state[parameter] for name, parameter in online.items()}
        for memory, tensors in (
            (self.mean, {name: moments["exp_avg"] for name, moments in state.items()}),
            (self.square, {name: moments["exp_avg_sq"] for name, moments in state.items()}),
            (self.weights, online),
            (self.target, dict(learner.target.named_parameters())),
        ):
            self.blocks.adopt_(memory, k, tensors)
        for moments in state.values():
            moments["step"].data = self.steps[k]

    def _leaf(self, memory: Tensor, group: tuple[str, ...]) -> Tensor:
        return self.blocks.view(memory, group).detach()

    def _of_weight_decay(self) -> Tensor | None:
        """AdamW's, of each block; biases, scales and offsets have none."""
        decays = [learner.weight_decay for learner in self.learners]
        if not any(decays):
            return None
        parameters = dict(self.learners[0].online.named_parameters())
        table = [[d if parameters[name].ndim > 1 else 0.0 for d in decays] for name in self.blocks.names]
        return self.blocks.of_parameters(torch.tensor(table, dtype=self.weights.dtype, device=self.device))


def _check_alike(learners: Sequence[Learner]) -> None:
    first = learners[0]
    shapes = [{name: p.shape for name, p in learner.online.named_parameters()} for learner in learners]
    for learner, its in zip(learners, shapes, strict=True):
        if its != shapes[0]:
            differ = sorted(
                name for name in its.keys() | shapes[0].keys() if its.get(name) != shapes[0].get(name)
            )
            raise ValueError(
                f"agents that learn in one update need networks of one shape, and these differ in "
                f"{', '.join(differ)}; stack agents with the same norms, games and sizes"
            )
        if learner.project_every_updates != first.project_every_updates:
            raise ValueError(
                f"agents that learn in one update are projected at the same updates, and these every "
                f"{first.project_every_updates} and every {learner.project_every_updates}; stack them apart"
            )
