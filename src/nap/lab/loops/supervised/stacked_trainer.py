"""Several classifiers in one step, which differ in their seed only.

Each keeps its own trainer, which evaluates, reports and saves it; its weights become slices of stacks, member
k being network k. An update runs crops, forward and backward pass under `vmap`, each layer of all members in
one launch (`nap.lab.loops.supervised.stacked`).
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
from nap.lab.loops.supervised.cifar_trainer import CifarTrainer
from nap.lab.loops.supervised.stacked.convert import collect_statistics_, stackable
from nap.lab.loops.supervised.trainer import Rates

ALIGNED = 16  # numbers: each member begins at a multiple of so many, which wide reads require


class StackedTrainer:
    """Trains the networks of several trainers in one step from now on.

    The trainers must be alike in all but their seed, and learn from the same images. On CUDA the step is one
    graph. Weights are updated by `nap.lab.loops.supervised.fused_sgd` where `CifarTrainer` would do so, too.

    Args:
        backend: of `torch.compile`, without which norms over whole images cannot be stacked.
    """

    def __init__(
        self, trainers: Sequence[CifarTrainer], *, graph: bool | None = None, backend: str = "inductor"
    ):
        self.trainers = list(trainers)
        first = self.trainers[0]
        device = first.labels.device
        self._names = [name for name, _ in first.model.named_parameters()]
        self._skeleton = stackable(first.model)
        self._weights = [_stack([t.parameters[i] for t in self.trainers]) for i in range(len(self._names))]
        buffers = [dict(t.model.named_buffers()) for t in self.trainers]
        self._buffers = {name: _stack([of[name] for of in buffers]) for name in buffers[0]}
        self._momenta, self._statistics = collect_statistics_(self._skeleton)
        self._batches = _stack([t.batches for t in self.trainers])
        self._num_correct = _stack([t.num_correct for t in self.trainers])
        monitors = zip(*(t.monitor.tensors for t in self.trainers), strict=True)
        self._monitors = MonitorState(*map(_stack, monitors))
        self._position = torch.zeros((), dtype=torch.int64, device=device)
        self._skip = torch.zeros_like(first.monitor.broken)
        self._ones = torch.ones(len(self.trainers), device=device)
        for trainer in self.trainers:
            trainer.rates = first.rates
            for shared, group in zip(
                first.optimizer.param_groups, trainer.optimizer.param_groups, strict=True
            ):
                group["lr"] = shared["lr"]
        self._fused_sgd: Any = None
        self._leaves = [weight.requires_grad_() for weight in self._weights]
        if first.half and first.settings.momentum > 0 and find_spec("triton"):
            self._make_fused_sgd()
        losses = vmap(self._loss, in_dims=(0, 0, 0, None), randomness="error")
        torch.compiler.reset()  # as in `compile_static`
        self._losses = torch.compile(losses, dynamic=False, fullgraph=True, backend=backend)
        self._record_ = torch.compile(self._record, dynamic=False, fullgraph=True, backend=backend)
        self._graph = device.type == "cuda" if graph is None else graph
        self._step: Callable[[], None] | None = None

    def train_epoch(
        self, orders: Sequence[Tensor], seeds: Sequence[int], rates: Rates, first_step: int
    ) -> None:
        """Each member learns from the batches of its order, as in `CifarTrainer.train_epoch`."""
        for trainer, order, seed in zip(self.trainers, orders, seeds, strict=True):
            trainer.load_epoch_(order, seed)
        self._position.zero_()
        if self._step is None:
            self._step = self._capture() if self._graph else self._next_update
        current = None
        for step in range(len(orders[0])):
            if current != (current := rates(first_step + step)):
                self.trainers[0].set_rates_(*current)
            self._step()

    def refresh_(self) -> None:
        """Use the states that were loaded into the trainers."""
        if self._fused_sgd is None:
            self._step = None  # the projectors now have other radii than those that a graph reads
        else:
            self._fused_sgd.refresh_(self._radii())

    def _loss(
        self, leaves: list[Tensor], buffers: Mapping[str, Tensor], batches: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """Loss and number of correct predictions of one member, and its BatchNorms' batch statistics."""
        first = self.trainers[0]
        if first.half and self._fused_sgd is None:  # autocast does not cast operations of our own
            leaves = [leaf.bfloat16() if leaf.ndim > 1 else leaf for leaf in leaves]
        state = {**dict(zip(self._names, leaves, strict=True)), **buffers}
        self._statistics.clear()
        loss, correct = first.loss_at(partial(functional_call, self._skeleton, state), batches, position)
        statistics = [self._statistics[name] for name in self._momenta]
        self._statistics.clear()
        return loss, correct, statistics

    def _next_update(self) -> None:
        losses, correct, statistics = self._losses(self._leaves, self._buffers, self._batches, self._position)
        gradients = torch.autograd.grad(losses, self._leaves, self._ones)
        with torch.no_grad():
            self._update_averages_(statistics)
            gradients = tuple(map(_by_rows, gradients))
            slices = [gradient[k] for k in range(len(self.trainers)) for gradient in gradients]
            norms = self._gradient_norms(slices)
            self._record_(losses.detach(), correct, norms.view(len(self.trainers), -1))
            if self._fused_sgd is not None:
                self._fused_sgd.step_()
                return
        for k, trainer in enumerate(self.trainers):
            of_member = slices[k * len(self._names) : (k + 1) * len(self._names)]
            for parameter, gradient in zip(trainer.parameters, of_member, strict=True):
                parameter.grad = torch.empty_like(parameter).copy_(gradient)  # fused SGD ignores strides
            trainer._apply_update_()

    def _update_averages_(self, statistics: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Update the running averages of all BatchNorms, at once for those of the same momentum."""
        values = dict(zip(self._momenta, statistics, strict=True))
        for momentum in set(self._momenta.values()):
            names = [name for name in self._momenta if self._momenta[name] == momentum]
            averages = [self._buffers[f"{name}.running_{kind}"] for name in names for kind in ("mean", "var")]
            torch._foreach_lerp_(averages, [value for name in names for value in values[name]], momentum)

    def _gradient_norms(self, gradients: list[Tensor]) -> Tensor:
        if self._fused_sgd is not None:
            norms: Tensor = self._fused_sgd.gradient_norms(gradients)
            return norms
        return torch.stack(torch._foreach_norm(gradients))

    def _record(self, losses: Tensor, correct: Tensor, norms: Tensor) -> None:
        """Record an update before it is made; one that is not finite is not (fused: for no member)."""
        state, _ = vmap(monitor_after)(self._monitors, losses, norms)
        for tensor, value in zip(self._monitors, state, strict=True):
            tensor.copy_(value)
        self._num_correct += correct
        self._skip.copy_(self._monitors.broken.amax(0))
        self._position.copy_((self._position + 1) % self._batches.shape[1])

    def _make_fused_sgd(self) -> None:
        """Copies of the weights in bfloat16 for the forward pass, and one optimizer for all members."""
        from nap.lab.loops.supervised.fused_sgd import FusedSGD

        members, count = len(self.trainers), len(self._names)
        matrices = {i: w for i, w in enumerate(self._weights) if w.ndim > 2}
        halves = {
            i: _empty_stack(members, w[0], torch.bfloat16).copy_(w.detach()) for i, w in matrices.items()
        }
        halves = {i: half.requires_grad_() for i, half in halves.items()}
        self._leaves = [halves.get(i, weight) for i, weight in enumerate(self._weights)]
        copies = {k * count + i: half.detach()[k] for i, half in halves.items() for k in range(members)}
        self._fused_sgd = FusedSGD(
            [trainer.optimizer for trainer in self.trainers],
            list(chain.from_iterable(trainer.parameters for trainer in self.trainers)),
            self._radii(),
            self._skip,
            copies,
        )

    def _radii(self) -> dict[int, Tensor]:
        """Radii by position among the parameters of all members."""
        count = len(self._names)
        return {k * count + i: r for k, t in enumerate(self.trainers) for i, r in t.radii().items()}

    def _capture(self) -> Callable[[], None]:
        changing = [tensor for trainer in self.trainers for tensor in trainer.changing()]
        replay = capture(self._next_update, [self._position, self._skip, *self._leaves, *changing])
        if self._fused_sgd is not None:
            self._fused_sgd.upload_addresses_()
        return replay


def _empty_stack(members: int, like: Tensor, dtype: torch.dtype) -> Tensor:
    """A stack of tensors like this one, each with its strides, and each aligned."""
    pitch = -(-like.numel() // ALIGNED) * ALIGNED
    memory = torch.zeros(members * pitch, dtype=dtype, device=like.device)
    return memory.as_strided((members, *like.shape), (pitch, *like.stride()))


@torch.no_grad()
def _stack(members: Sequence[Tensor]) -> Tensor:
    """The members in one tensor, of which each becomes a slice."""
    stack = _empty_stack(len(members), members[0], members[0].dtype)
    for k, member in enumerate(members):
        stack[k].copy_(member)
        member.data = stack[k]
    return stack


def _by_rows(gradient: Tensor) -> Tensor:
    """Matrix products leave gradients by columns: one copy for all members."""
    return gradient.contiguous() if gradient.ndim == 3 else gradient
