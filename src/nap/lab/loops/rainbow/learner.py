"""An update of an agent: a CUDA graph where there is CUDA, its three forward passes side by side."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Generator, Tensor

import nap
from nap.lab.loops.common.cuda_graph import capture, compile_static, on_streams
from nap.lab.loops.common.nonfinite import UpdateMonitor
from nap.lab.loops.common.optimizer import load_named_state_, named_state, reset_, state_tensors
from nap.lab.loops.rainbow import c51
from nap.lab.loops.rainbow.actor import fill_uniform_
from nap.lab.loops.rainbow.replay import Batch, Replay
from nap.lab.loops.rainbow.settings import AgentConfig, RainbowArm
from nap.lab.models.rainbow_net import RainbowNet, noise_of

MAX_PRIORITY = 100.0
EPS = 1e-5  # of the norms; one relative to the weights would read them three times more in each update


class Update(ABC):
    """An update of one agent, or of a stack of them, whose tensors have an axis of agents in front.

    Nothing here waits for the device. Each function without an underscore can be compiled as a whole.
    """

    replay: Replay
    settings: AgentConfig
    atoms: Tensor  # the returns that the networks' distributions are over
    importance_exponent: Tensor  # of each agent
    generators: list[Generator]

    def _prepare_(self, noise_size: int, *agents: int, graph: bool, compile_: bool) -> None:
        """Compile and capture, where asked; comes last in `__init__`."""
        device, batch_size = self.atoms.device, self.settings.batch_size
        self._u = torch.zeros(*agents, batch_size, dtype=torch.float64, device=device)
        self._noise = torch.zeros(*agents, 3, noise_size, dtype=self.atoms.dtype, device=device)
        self._streams = [torch.cuda.Stream(device) for _ in range(2)] if device.type == "cuda" else []
        prepared: Callable[..., Any] = compile_static if compile_ else lambda function: function
        self._draw, self._loss = prepared(self.replay.draw), prepared(self.loss)
        self._greedy, self._target = prepared(self.greedy_actions), prepared(self.target_logits)
        self._log_probabilities = prepared(self.log_probabilities)
        self._prioritize_ = prepared(self.prioritize_)
        self._update: Callable[[], None] = self._learn
        if graph:
            self.replay.mass.fill_(1.0)  # something to draw
            changing = [*self._changing(), *self.replay.small_tensors]
            self._update = capture(self._learn, changing, self.generators)
            self.replay.clear_()

    def _learn(self) -> None:
        for numbers in (self._u, self._noise):
            fill_uniform_(numbers, self.generators)
        batch, noise = self._draw(self._u), self._noise
        greedy, target, log_probabilities = on_streams(
            self._streams,
            lambda: self._greedy(batch.next_states, noise[..., 1:2, :]),
            lambda: self._target(batch.next_states, noise[..., 2:3, :]),
            lambda: self._log_probabilities(batch.states, batch.actions, noise[..., :1, :]),
        )
        loss, losses, gradient = self._loss(log_probabilities.detach(), target, greedy, batch)
        self._step(log_probabilities, gradient, loss)
        self._prioritize_(batch.slots, losses)

    @abstractmethod
    def logits(self, states: Tensor, u: Tensor) -> Tensor:
        """The online network's logits (…, B, actions, atoms); `u` draws its noise."""

    @abstractmethod
    def target_logits(self, states: Tensor, u: Tensor) -> Tensor:
        """The target network's logits."""

    @abstractmethod
    def _step(self, log_probabilities: Tensor, gradient: Tensor, loss: Tensor) -> None:
        """Backward pass, the monitor's record, clipping, Adam and projection."""

    @abstractmethod
    def _changing(self) -> list[Tensor]:
        """The tensors that an update changes, besides the replay's."""

    def log_probabilities(self, states: Tensor, actions: Tensor, u: Tensor) -> Tensor:
        """The online network's log-probabilities (…, B, atoms) of the returns of the actions taken."""
        logits = self.logits(states, u).flatten(0, -3)
        return c51.log_probabilities(logits, actions.flatten()).view(*actions.shape, -1)

    @torch.no_grad()
    def greedy_actions(self, states: Tensor, u: Tensor) -> Tensor:
        """The actions of the highest mean return (…, B), by the online network."""
        return c51.mean_return(self.logits(states, u), self.atoms).argmax(-1)

    @torch.no_grad()
    def loss(
        self, log_probabilities: Tensor, target_logits: Tensor, greedy: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The weighted mean loss, the loss of each transition, and the gradient for the log-probabilities."""
        rewards, discounts = batch.rewards.flatten(), batch.discounts.flatten()
        targets = c51.double_q_targets(
            rewards, discounts, greedy.flatten(), target_logits.flatten(0, -3), self.atoms
        ).view_as(log_probabilities)
        weights = importance_weights(batch.probabilities, self.importance_exponent.unsqueeze(-1))
        weights = weights.to(targets.dtype) / greedy.shape[-1]
        losses = -(targets * log_probabilities).sum(-1)
        return (weights * losses).sum(-1), losses, -weights.unsqueeze(-1) * targets

    @torch.no_grad()
    def prioritize_(self, slots: Tensor, losses: Tensor) -> None:
        """New priorities for the transitions of a batch."""
        self.replay.update_(slots, losses.clamp(max=MAX_PRIORITY))


class Learner(Update):
    """An online network that learns from a replay, and its target network."""

    def __init__(
        self,
        net: RainbowNet,
        projector: nap.Projector | None,
        arm: RainbowArm,
        replay: Replay,
        settings: AgentConfig,
        *,
        graph: bool = False,
        compile_: bool = False,
    ):
        self.online, self.target = net, copy.deepcopy(net).requires_grad_(False)
        self.projector, self.replay, self.settings = projector, replay, settings
        self.project_every_updates, self.weight_decay = arm.project_every_updates, arm.weight_decay
        self.joint_noise = arm.project and arm.noise == "joint"  # noisy layers have one radius
        named = dict(self.online.named_parameters())
        self.parameters: list[Tensor] = list(named.values())
        self.device = device = replay.mass.device
        self.atoms = c51.support(settings.atoms, settings.v_max, self.parameters[0])
        self.rate = torch.tensor(settings.learning_rate, device=device)
        exponent = settings.importance_exponent
        self.importance_exponent = torch.tensor(exponent, dtype=torch.float64, device=device)
        self._schedule: tuple[float, float] | None = None  # what these two were last set to
        self.generator = Generator(device)
        self.generators = [self.generator]
        self.monitor = UpdateMonitor(list(named), device)
        self.clip_factor = torch.ones((), dtype=torch.float32, device=device)  # gradients are divided by it
        self.optimizer = self._adam()
        self.updates = 0
        self._record_ = compile_static(self.record_) if compile_ else self.record_
        self._prepare_(net.noise_size, graph=graph, compile_=compile_)

    def update(self, rate: float, importance_exponent: float) -> None:
        if self._schedule != (rate, importance_exponent):
            self.rate.fill_(rate)
            self.importance_exponent.fill_(importance_exponent)
            self._schedule = (rate, importance_exponent)
        self._update()
        self.updates += 1
        every = self.project_every_updates
        if self.projector is not None and every > 1 and self.updates % every == 0:
            self.projector.project_()
        if self.updates % self.settings.target_every == 0:
            self.copy_to_target_()

    def logits(self, states: Tensor, u: Tensor) -> Tensor:
        return self.online(states, noise_of(u))

    @torch.no_grad()
    def target_logits(self, states: Tensor, u: Tensor) -> Tensor:
        return self.target(states, noise_of(u))

    @torch.no_grad()
    def record_(self, loss: Tensor, norms: Tensor) -> None:
        """Record loss and gradient norms, and by how much the gradients are clipped."""
        self.clip_factor.copy_((self.monitor.note_(loss, norms) / self.settings.clip).clamp(min=1))

    def _step(self, log_probabilities: Tensor, gradient: Tensor, loss: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        log_probabilities.backward(gradient)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        self._record_(loss, torch.stack(torch._foreach_norm(gradients)))
        self.optimizer.step()
        if self.projector is not None and self.project_every_updates == 1:
            self.projector.project_()

    def _changing(self) -> list[Tensor]:
        return [*self.parameters, *state_tensors(self.optimizer), self.clip_factor, *self.monitor.tensors]

    @torch.no_grad()
    def copy_to_target_(self) -> None:
        """The target network becomes what the network is now."""
        torch._foreach_copy_(list(self.target.parameters()), self.parameters)

    def state_dict(self) -> dict[str, Any]:
        named = dict(self.online.named_parameters())
        return {
            "online": {name: p.detach() for name, p in named.items()},
            "target": {name: p.detach() for name, p in self.target.named_parameters()},
            "optimizer": named_state(self.optimizer, named),
            "updates": self.updates,
            "watch": self.monitor.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """In place: a captured graph goes on with these very tensors."""
        named = dict(self.online.named_parameters())
        for name, parameter in named.items():
            parameter.copy_(state["online"][name])
        load_named_state_(self.optimizer, named, state["optimizer"])
        for name, parameter in self.target.named_parameters():
            parameter.copy_(state["target"][name])
        self.monitor.load_state_dict(state["watch"])
        self.updates = state["updates"]

    def _adam(self) -> torch.optim.Adam:
        """Adam with all of its state, as a graph needs it, and no update made."""
        capturable = self.device.type == "cuda"
        options: dict[str, Any] = {"eps": self.settings.adam_eps, "fused": True, "capturable": capturable}
        if self.weight_decay:
            weights = {
                "params": [p for p in self.parameters if p.ndim > 1],
                "weight_decay": self.weight_decay,
            }
            rest = {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0}
            optimizer: torch.optim.Adam = torch.optim.AdamW([weights, rest], lr=self.rate, **options)
        else:
            optimizer = torch.optim.Adam(self.parameters, lr=self.rate, **options)
        before = [p.detach().clone() for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, before)
        reset_(optimizer)
        optimizer.found_inf, optimizer.grad_scale = self.monitor.broken, self.clip_factor  # type: ignore[attr-defined]
        return optimizer


def importance_weights(probabilities: Tensor, exponent: Tensor) -> Tensor:
    """What makes up for unequal draws, (1/P)^exponent, the largest of the batch being 1.

    The number of transitions, a factor in the usual formula, goes out with that.

    >>> importance_weights(torch.tensor([0.1, 0.4], dtype=torch.float64), torch.tensor(0.5))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    weights = probabilities**-exponent
    return weights / weights.amax(-1, keepdim=True)


def build(
    arm: RainbowArm, make: Callable[[], RainbowNet], states: Tensor
) -> tuple[RainbowNet, nap.Projector | None]:
    """A fresh network, from the global random state, and its projector, if the arm projects."""
    net = make()
    if arm.norm:
        affine: Literal["scale_offset", "scale"] = "scale_offset" if arm.offsets else "scale"
        nap.normalize_(net, (states, net.noise(1)), eps=EPS, affine=affine)
    if not arm.project:
        return net, None
    options: dict[str, Any] = {"affine": arm.affine, "decay": arm.decay, "noise": arm.noise}
    return net, nap.Projector(net, output=arm.output, branches="project", **options)
