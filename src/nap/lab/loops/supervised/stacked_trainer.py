"""Classifiers of one arm that learn side by side, in one step: what differs is their seed.

Each has a trainer of its own, which judges it, reads it out and saves it. Here their weights become slices of
stacks, member k of every tensor being network k, and an update goes over the stacks: crops, forward and
backward under `vmap`, with a layer of all members in one launch (`vision.stackable`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from nap.lab.loops.common.cuda_graph import capture
from nap.lab.loops.common.nonfinite import MonitorState, monitor_after
from nap.lab.loops.supervised.classifier import Rates
from nap.lab.loops.supervised.stacked.convert import gather_, stackable
from nap.lab.loops.supervised.trainer import Trainer

ALIGNED = 16  # numbers: each member begins at a multiple of so many, which wide reads ask for


class StackedTrainer:
    """Trainers whose networks learn in one step from now on.

    They must be alike in all but their seed, and learn from the same images. On CUDA the step is one graph.
    Weights are updated by `nap.lab.loops.supervised.fused_sgd` where `Trainer` would choose that, too.

    Args:
        backend: of `torch.compile`, without which norms over whole images cannot be stacked.
    """

    def __init__(self, trainers: Sequence[Trainer], *, graph: bool | None = None, backend: str = "inductor"):
        self.trainers = list(trainers)
        first = self.trainers[0]
        device = first.labels.device
        self._names = [name for name, _ in first.model.named_parameters()]
        self._skeleton = stackable(first.model)
        self._weights = [_stacked([t.parameters[i] for t in self.trainers]) for i in range(len(self._names))]
        buffers = [dict(t.model.named_buffers()) for t in self.trainers]
        self._buffers = {name: _stacked([own[name] for own in buffers]) for name in buffers[0]}
        self._shares, self._gathered = gather_(self._skeleton)
        self._draws = _stacked([t.draws for t in self.trainers])
        self._right = _stacked([t.right for t in self.trainers])
        self._monitors = MonitorState(
            *map(_stacked, zip(*(t.watch.tensors for t in self.trainers), strict=True))
        )
        self._at = torch.zeros((), dtype=torch.int64, device=device)
        self._skip = torch.zeros_like(first.watch.broken)
        self._ones = torch.ones(len(self.trainers), device=device)
        for trainer in self.trainers:
            trainer.rates = first.rates
            for own, group in zip(first.optimizer.param_groups, trainer.optimizer.param_groups, strict=True):
                group["lr"] = own["lr"]
        self._descent: Any = None
        self._leaves = [weight.requires_grad_() for weight in self._weights]
        if first.half and first.recipe.momentum > 0 and find_spec("triton"):
            self._descend_quickly()
        losses = vmap(self._loss, in_dims=(0, 0, 0, None), randomness="error")
        torch.compiler.reset()  # as `training.graph.compiled` has it
        self._losses = torch.compile(losses, dynamic=False, fullgraph=True, backend=backend)
        self._note_ = torch.compile(self._noted, dynamic=False, fullgraph=True, backend=backend)
        self._graph = device.type == "cuda" if graph is None else graph
        self._step: Callable[[], None] | None = None

    def learn(self, orders: Sequence[Tensor], seeds: Sequence[int], rates: Rates, first: int) -> None:
        """Each member learns from the batches of its order, as `Trainer.learn` has it."""
        for trainer, order, seed in zip(self.trainers, orders, seeds, strict=True):
            trainer.draw(order, seed)
        self._at.zero_()
        if self._step is None:
            self._step = self._recorded() if self._graph else self._next
        now = None
        for step in range(len(orders[0])):
            if now != (now := rates(first + step)):
                self.trainers[0].set_rates_(*now)
            self._step()

    def refresh_(self) -> None:
        """Take over what was loaded into the trainers."""
        if self._descent is None:
            self._step = None  # the projectors have other radii now than those that a recording reads
        else:
            self._descent.refresh_(self._radii())

    def _loss(
        self, leaves: list[Tensor], buffers: Mapping[str, Tensor], draws: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """Of one member; and what its averages are to follow."""
        first = self.trainers[0]
        if first.half and self._descent is None:  # operations of our own are not cast by autocast
            leaves = [leaf.bfloat16() if leaf.ndim > 1 else leaf for leaf in leaves]
        state = {**dict(zip(self._names, leaves, strict=True)), **buffers}
        self._gathered.clear()
        loss, right = first.loss_at(partial(functional_call, self._skeleton, state), draws, at)
        followed = [self._gathered[name] for name in self._shares]
        self._gathered.clear()
        return loss, right, followed

    def _next(self) -> None:
        losses, right, followed = self._losses(self._leaves, self._buffers, self._draws, self._at)
        gradients = torch.autograd.grad(losses, self._leaves, self._ones)
        with torch.no_grad():
            self._follow_(followed)
            gradients = tuple(map(_by_rows, gradients))
            slices = [gradient[k] for k in range(len(self.trainers)) for gradient in gradients]
            norms = self._norms(slices)
            self._note_(losses.detach(), right, norms.view(len(self.trainers), -1))
            if self._descent is not None:
                self._descent.step_()
                return
        for trainer, own in zip(self.trainers, _in_turn(slices, len(self._names)), strict=True):
            for parameter, gradient in zip(trainer.parameters, own, strict=True):
                parameter.grad = torch.empty_like(parameter).copy_(gradient)  # fused SGD ignores strides
            trainer._descend_()

    def _follow_(self, followed: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Move the averages of all BatchNorms, at once for those of the same share."""
        values = dict(zip(self._shares, followed, strict=True))
        for share in set(self._shares.values()):
            own = [name for name in self._shares if self._shares[name] == share]
            averages = [self._buffers[f"{name}.running_{what}"] for name in own for what in ("mean", "var")]
            torch._foreach_lerp_(averages, [value for name in own for value in values[name]], share)

    def _norms(self, gradients: list[Tensor]) -> Tensor:
        if self._descent is not None:
            norms: Tensor = self._descent.norms(gradients)
            return norms
        return torch.stack(torch._foreach_norm(gradients))

    def _noted(self, losses: Tensor, right: Tensor, norms: Tensor) -> None:
        """See an update before it is made; one that is not finite is not (by `descent`, none of all is)."""
        seen, _ = vmap(monitor_after)(self._monitors, losses, norms)
        for tensor, now in zip(self._monitors, seen, strict=True):
            tensor.copy_(now)
        self._right += right
        self._skip.copy_(self._monitors.broken.amax(0))
        self._at.copy_((self._at + 1) % self._draws.shape[1])

    def _descend_quickly(self) -> None:
        """Weights in bfloat16 to compute with, and one update for those of all members."""
        from nap.lab.loops.supervised.fused_sgd import FusedSGD

        members, count = len(self.trainers), len(self._names)
        halves = {i: w for i, w in enumerate(self._weights) if w.ndim > 2}
        halves = {i: _room(members, w[0], torch.bfloat16).copy_(w.detach()) for i, w in halves.items()}
        halves = {i: half.requires_grad_() for i, half in halves.items()}
        self._leaves = [halves.get(i, weight) for i, weight in enumerate(self._weights)]
        copies = {k * count + i: half.detach()[k] for i, half in halves.items() for k in range(members)}
        self._descent = FusedSGD(
            [trainer.optimizer for trainer in self.trainers],
            list(chain.from_iterable(trainer.parameters for trainer in self.trainers)),
            self._radii(),
            self._skip,
            copies,
        )

    def _radii(self) -> dict[int, Tensor]:
        """By place among the parameters of all members."""
        count = len(self._names)
        return {k * count + i: r for k, t in enumerate(self.trainers) for i, r in t.radii().items()}

    def _recorded(self) -> Callable[[], None]:
        """The update as a graph."""
        changing = [self._at, self._skip, *self._leaves]
        replay = capture(self._next, [*changing, *(held for t in self.trainers for held in t.changing())])
        if self._descent is not None:
            self._descent.send_()
        return replay


def _room(count: int, one: Tensor, dtype: torch.dtype) -> Tensor:
    """For so many tensors like this one, each as it lies in memory, and each from an aligned place on."""
    pitch = -(-one.numel() // ALIGNED) * ALIGNED
    memory = torch.zeros(count * pitch, dtype=dtype, device=one.device)
    return memory.as_strided((count, *one.shape), (pitch, *one.stride()))


@torch.no_grad()
def _stacked(members: Sequence[Tensor]) -> Tensor:
    """The members in one tensor, of which each of them is a slice from now on."""
    stack = _room(len(members), members[0], members[0].dtype)
    for k, member in enumerate(members):
        stack[k].copy_(member)
        member.data = stack[k]
    return stack


def _by_rows(gradient: Tensor) -> Tensor:
    """Products leave that of a matrix by columns, and one copy for all members is enough."""
    return gradient.contiguous() if gradient.ndim == 3 else gradient


def _in_turn(items: Sequence[Tensor], count: int) -> list[Sequence[Tensor]]:
    return [items[start : start + count] for start in range(0, len(items), count)]
