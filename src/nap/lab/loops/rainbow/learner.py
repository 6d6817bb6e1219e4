"""An agent's network and one update of it: a CUDA graph where there is CUDA, three networks side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Generator, Tensor

import nap
from nap.lab.loops.common.cuda_graph import capture, compile_static, on_streams
from nap.lab.loops.common.nonfinite import UpdateMonitor
from nap.lab.loops.common.optimizer import load_named_state_, named_state, reset_, state_tensors
from nap.lab.loops.rainbow import c51
from nap.lab.loops.rainbow.evaluation import greedy
from nap.lab.loops.rainbow.replay import Batch, Replay
from nap.lab.loops.rainbow.settings import AgentConfig, RainbowArm
from nap.lab.models.rainbow_net import RainbowNet, noise_of

PRIORITY_LIMIT = 100.0
F = TypeVar("F", bound=Callable[..., Any])


class Learner:
    """A network that learns from a replay, and its target network. Nothing here waits for the device."""

    def __init__(
        self,
        built: Built,
        replay: Replay,
        settings: AgentConfig,
        *,
        graph: bool = False,
        compile_: bool = False,
    ):
        self.online = built.net
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.projector, self.replay, self.settings = built.projector, replay, settings
        self.project_every_updates, self.weight_decay = built.project_every_updates, built.weight_decay
        self.joint_noise = built.joint_noise
        self.parameters: list[Tensor] = list(self.online.parameters())
        self.device = replay.mass.device
        self.atoms = c51.support(settings.atoms, settings.v_max, self.parameters[0])
        self.rate = torch.tensor(settings.learning_rate, device=self.device)
        self.importance_exponent = torch.tensor(
            settings.importance_exponent, dtype=torch.float64, device=self.device
        )
        self._knobs: tuple[float, float] | None = None  # what these two were last set to
        self.generator = Generator(self.device)
        self.monitor = UpdateMonitor([name for name, _ in self.online.named_parameters()], self.device)
        self.clip_factor = torch.ones(
            (), dtype=torch.float32, device=self.device
        )  # gradients are divided by it
        self.optimizer = self._adam()
        self.updates = 0
        cuda = self.device.type == "cuda"
        self._sides = [torch.cuda.Stream(self.device) for _ in range(2)] if cuda else []
        prepared = compile_static if compile_ else as_it_is
        self._draw, self._weighed = prepared(replay.draw), prepared(self.weighed)
        self._best, self._values, self._taken = (prepared(f) for f in (self.best, self.values, self.taken))
        self._note_, self._rank_ = prepared(self.note_), prepared(self.rank_)
        self._update: Callable[[], None] = self._captured() if graph else self._learn

    def update(self, rate: float, importance_exponent: float) -> None:
        """Learn from one batch."""
        if self._knobs != (rate, importance_exponent):
            self.rate.fill_(rate)
            self.importance_exponent.fill_(importance_exponent)
            self._knobs = (rate, importance_exponent)
        self._update()
        self.updates += 1
        rare = self.projector is not None and self.project_every_updates > 1
        if rare and self.updates % self.project_every_updates == 0:
            self.projector.project_()  # type: ignore[union-attr]
        if self.updates % self.settings.target_every == 0:
            self.copy_to_target_()

    def _learn(self) -> None:
        u = self.replay.uniform_numbers(self.settings.batch_size, self.generator)
        v = self.online.uniform_numbers(3, self.generator)
        batch = self._draw(u)
        best, values, taken = on_streams(
            self._sides,
            lambda: self._best(batch.next_states, v[1:2]),
            lambda: self._values(batch.next_states, v[2:3]),
            lambda: self._taken(batch.states, batch.actions, v[:1]),
        )
        loss, losses, gradient = self._weighed(taken.detach(), values, best, batch)
        self.optimizer.zero_grad(set_to_none=True)
        taken.backward(gradient)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        self._note_(loss, torch.stack(torch._foreach_norm(gradients)))
        self.optimizer.step()
        if self.projector is not None and self.project_every_updates == 1:
            self.projector.project_()
        self._rank_(batch.slots, losses)

    # What follows can be compiled, each as a whole.

    def taken(self, states: Tensor, actions: Tensor, v: Tensor) -> Tensor:
        """The network's log-probabilities of returns for actions that were taken; `v` draws its noise."""
        return c51.taken(self.online(states, noise_of(v)), actions)

    @torch.no_grad()
    def values(self, states: Tensor, v: Tensor) -> Tensor:
        """What the target network says of states."""
        return self.target(states, noise_of(v))

    def best(self, states: Tensor, v: Tensor) -> Tensor:
        """The network's choice of actions."""
        return greedy(self.online, states, v, self.atoms)

    @torch.no_grad()
    def weighed(
        self, taken: Tensor, values: Tensor, best: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The weighted mean loss of a batch, the loss of each transition, and the gradient for `taken`."""
        targets = c51.double_q_targets(batch.rewards, batch.discounts, best, values, self.atoms)
        weights = importance_weights(batch.probabilities, self.importance_exponent).to(targets.dtype) / len(
            best
        )
        losses = -(targets * taken).sum(-1)
        return (weights * losses).sum(), losses, -weights[:, None] * targets

    @torch.no_grad()
    def note_(self, loss: Tensor, norms: Tensor) -> None:
        """See the norms of all gradients before the update, and how much too long they are together."""
        self.clip_factor.copy_((self.monitor.note_(loss, norms) / self.settings.clip).clamp(min=1))

    @torch.no_grad()
    def rank_(self, slots: Tensor, losses: Tensor) -> None:
        """New priorities for the transitions of a batch."""
        self.replay.update_(slots, losses.clamp(max=PRIORITY_LIMIT))

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
        options: dict[str, Any] = {"lr": self.rate, "eps": self.settings.adam_eps, "fused": True}
        options["capturable"] = self.device.type == "cuda"
        if self.weight_decay:
            weights = [p for p in self.parameters if p.ndim > 1]
            rest = [p for p in self.parameters if p.ndim < 2]
            groups = [
                {"params": weights, "weight_decay": self.weight_decay},
                {"params": rest, "weight_decay": 0.0},
            ]
            optimizer: torch.optim.Adam = torch.optim.AdamW(groups, **options)
        else:
            optimizer = torch.optim.Adam(self.parameters, **options)
        before = [p.detach().clone() for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, before)
        reset_(optimizer)
        optimizer.found_inf, optimizer.grad_scale = self.monitor.broken, self.clip_factor  # type: ignore[attr-defined]
        return optimizer

    def _captured(self) -> Callable[[], None]:
        """An update as a graph; all is as before."""
        self.replay.mass.fill_(1.0)  # something to draw
        own = [*self.parameters, *state_tensors(self.optimizer), self.clip_factor, *self.monitor.tensors]
        update = capture(self._learn, [*own, *self.replay.small_tensors], [self.generator])
        self.replay.clear_()
        return update


def importance_weights(probabilities: Tensor, exponent: Tensor) -> Tensor:
    """What makes up for unequal draws, (1/P)^exponent, the largest of the batch being 1.

    The number of transitions, a factor in the usual formula, goes out with that.

    >>> importance_weights(torch.tensor([0.1, 0.4], dtype=torch.float64), torch.tensor(0.5))
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    weights = probabilities**-exponent
    return weights / weights.amax(-1, keepdim=True)


def as_it_is(function: F) -> F:
    return function


EPS = 1e-5  # of the norms; one relative to the weights would read them three times more in each update


@dataclass(frozen=True)
class Built:
    """A network, what keeps its weights at their first norms, and what else an update is to do."""

    net: RainbowNet
    projector: nap.Projector | None
    project_every_updates: int = 1
    weight_decay: float = 0.0
    joint_noise: bool = False  # noisy layers have one radius


def build(variant: RainbowArm, make: Callable[[], RainbowNet], example: torch.Tensor) -> Built:
    """A network of this variant, fresh from the global random state. `example` is a batch of states."""
    net = make()
    if variant.norm:
        affine: Literal["scale_offset", "scale"] = "scale_offset" if variant.offsets else "scale"
        nap.normalize_(net, (example, net.noise(1)), eps=EPS, affine=affine)
    projector = None
    if variant.project:
        projector = nap.Projector(
            net,
            affine=variant.affine,
            output=variant.output,
            branches="project",
            decay=variant.decay,
            noise=variant.noise,
        )
    joint = variant.project and variant.noise == "joint"
    return Built(net, projector, variant.project_every_updates, variant.weight_decay, joint)
