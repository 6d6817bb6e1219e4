"""A population that learns: one step for all members, as one CUDA graph where there is CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from nap.lab.datasets.streams import reorder
from nap.lab.loops.common.cuda_graph import capture, compile_static
from nap.lab.loops.common.nonfinite import NonFiniteGuard, culprit
from nap.lab.loops.common.optimizer import load_named_state_, named_state, reset_
from nap.lab.loops.population.stacking import PopulationProjector, Stacked, Strategy, forward
from nap.lab.runner.work import NotFinite
from nap.methods import Method, Training
from nap.methods.contract import moments_of


@dataclass(frozen=True)
class Recipe:
    """How a population learns."""

    learning_rate: float
    optimizer: Literal["Adam", "SGD"] = "Adam"
    strategy: Strategy = "batched"
    graph: bool = False  # the whole step as one CUDA graph
    compile_: bool = False  # the losses through torch.compile: a sixth faster, after half a minute


@dataclass(frozen=True)
class EpochMeans:
    """Means over the updates of an epoch, one number a member; accuracy is that before each update."""

    accuracy: Tensor
    loss: Tensor
    gradient_norm: Tensor


class StackedProjector(Protocol):
    """Projects stacked parameters."""

    def project_(self, parameters: Stacked) -> None:
        """Project weights, scales and offsets, after each step."""

    def project_weights_(self, parameters: Stacked) -> None:
        """Project the weights alone."""


class Trainer:
    """Stacked networks, their optimizer, method and projector, and the data that they learn from.

    Each member has its own labels, batches and random numbers, so a population of K computes what K single
    runs compute.

    Args:
        skeleton: the architecture; its own parameters are not used.
        initial: where each member starts, stacked.
        images: (N, C, H, W), shared by all members and tasks.
        method: acts as in an ordinary loop (`nap.methods`). One that is `host_side` acts between the
            steps, the others inside them.
        projector: its `project_` is called with the parameters after every step.
    """

    def __init__(
        self,
        skeleton: nn.Module,
        initial: Stacked,
        images: Tensor,
        recipe: Recipe,
        *,
        method: Method | None = None,
        projector: StackedProjector | None = None,
        batch_size: int = 128,
        permutes_pixels: bool = False,
    ):
        self.skeleton, self.recipe, self.images = skeleton, recipe, images
        self.method, self.projector = method or Method(), projector
        self.initial = initial
        self.members = len(next(iter(initial.values())))
        device = images.device
        self.forward = forward(skeleton, recipe.strategy)
        self._losses = compile_static(self.losses) if recipe.compile_ else self.losses
        self.parameters = self._in_layout_of_gradients(initial, self.images[:batch_size])
        self.generators = [Generator(device) for _ in range(self.members)]
        self.optimizer = _optimizer(recipe, list(self.parameters.values()), device)
        self.training = Training(
            model=skeleton,
            parameters=self.parameters,
            initial=initial,
            learning_rate=lambda name: recipe.learning_rate,
            moments=lambda name: moments_of(self.optimizer, name, self.parameters[name]),
            generator=self.generators,
            stacked=True,
        )
        shape = (self.members, len(images))
        self.labels = torch.zeros(shape, dtype=torch.int64, device=device)
        pixels = torch.arange(images[0, 0].numel(), device=device)
        self.pixel_order = pixels.expand(self.members, -1).clone() if permutes_pixels else None
        self._steps = len(images) // batch_size
        if self._steps < 1:
            raise ValueError(f"{len(images)} images do not fill a batch of {batch_size}")
        index = (self.members, self._steps, batch_size)
        self._index = torch.zeros(index, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._sums = torch.zeros(3, self.members, dtype=images.dtype, device=device)
        self._guard = NonFiniteGuard(self.members, device)
        self.optimizer.found_inf = self._guard.broken  # type: ignore[attr-defined]
        self._apply_update_: Callable[[Tensor], None] = self._step_and_project_
        self._norms: Callable[[Sequence[Tensor]], Tensor] = member_norms
        self._step = self._prepared_step()

    def inputs(self, index: Tensor) -> Tensor:
        """The images at `index` (K, B), as each member sees them."""
        x = self.images[index]
        if self.pixel_order is not None:
            x = vmap(reorder)(x, self.pixel_order)
        return x

    def losses(self, parameters: Stacked, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy of each member on its batch, and its logits."""
        logits = self.forward(parameters, x)
        each = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        return each.view(y.shape).mean(1), logits

    def train_epoch(self, index: Tensor, *, steps_before: int = 0) -> EpochMeans:
        """One pass over batches of `index` (K, steps, B). Stops before an update that is not finite."""
        self._index.copy_(index)
        self._position.zero_()
        self._sums.zero_()
        for step in range(self._steps):
            self._step()
            if not self.recipe.graph and self._guard.broken.item():
                break
            if self.method.host_side:
                self.method.after_step_(self.training, self.inputs(self._index[:, step]))
        if self._guard.broken.item():
            self._raise_not_finite(steps_before)
        if self.method.host_side and self.projector is not None:
            self.projector.project_weights_(self.parameters)  # it may have moved them in the last step
        means = (self._sums / self._steps).double().cpu()
        return EpochMeans(*means)

    @property
    def steps_per_epoch(self) -> int:
        return self._steps

    @torch.no_grad()
    def load_parameters_(self, parameters: Stacked) -> None:
        """Overwrite the parameters in place; the optimizer keeps its state."""
        for name, parameter in self.parameters.items():
            parameter.copy_(parameters[name])

    def state_dict(self) -> dict[str, Any]:
        return {
            "parameters": {name: p.detach() for name, p in self.parameters.items()},
            "optimizer": named_state(self.optimizer, self.parameters),
            "method": self.method.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """In place: a captured graph goes on with these very tensors."""
        self.load_parameters_(state["parameters"])
        load_named_state_(self.optimizer, self.parameters, state["optimizer"])
        self.method.load_state_dict(state["method"])
        self._guard.reset_()

    def _update(self) -> None:
        index = self._index.index_select(1, self._position).squeeze(1)
        x, y = self.inputs(index), self.labels.gather(1, index)
        losses, logits = self._losses(self.parameters, x, y)
        penalty = self.method.penalty(self.parameters, self.initial, stacked=True)
        self.optimizer.zero_grad(set_to_none=True)
        (losses + penalty).sum().backward()
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        with torch.no_grad():
            norms = self._norms(gradients)
            accuracy = (logits.argmax(2) == y).to(losses.dtype).mean(1)
            self._sums += torch.stack([accuracy, losses, norms])
            self._guard.note_(losses, norms, self._position)
        if not self.recipe.graph and self._guard.broken.item():
            return  # in a graph the optimizer skips the update, here all that follows does not happen
        self.method.before_step_(self.training)
        self._apply_update_(x)
        self._position.add_(1).remainder_(self._steps)  # a capture makes trial steps

    def _step_and_project_(self, x: Tensor) -> None:
        self.optimizer.step()
        if not self.method.host_side:
            self.method.after_step_(self.training, x)
        if self.projector is not None:
            self.projector.project_(self.parameters)

    def _use_kernels(self) -> None:
        """Use our kernels for norms, Adam and projection, where there are any for this case."""
        some = next(iter(self.parameters.values()))
        if not some.is_cuda or some.dtype != torch.float32:
            return
        from nap.lab.loops.population import fused_adam

        self._norms = fused_adam.member_norms
        between = not self.method.host_side and type(self.method).after_step_ is not Method.after_step_
        projector = self.projector
        if between or not isinstance(self.optimizer, torch.optim.Adam):
            return
        if projector is not None and not isinstance(projector, PopulationProjector):
            return
        radii = {} if projector is None else projector.radii
        step_and_project = fused_adam.FusedAdam(self.optimizer, self.parameters, radii, self._guard.broken)

        def apply_update_(x: Tensor) -> None:
            step_and_project()
            if projector is not None:
                projector.project_affine_(self.parameters)

        self._apply_update_ = apply_update_

    def _in_layout_of_gradients(self, initial: Stacked, images: Tensor) -> Stacked:
        """The parameters, in memory as their gradients arrive: transposed, for a batched product.

        Else each backward pass would copy every gradient into the parameter's layout, a fifth of a step.
        """
        parameters = {name: p.clone().requires_grad_() for name, p in initial.items()}
        x = images.expand(self.members, *images.shape)
        y = torch.zeros(x.shape[:2], dtype=torch.int64, device=x.device)
        losses, _ = self._losses(parameters, x, y)
        gradients = torch.autograd.grad(losses.sum(), list(parameters.values()))
        return {
            name: torch.empty_strided(p.shape, g.stride(), dtype=p.dtype, device=p.device)
            .copy_(p.detach())
            .requires_grad_()
            for (name, p), g in zip(parameters.items(), gradients, strict=True)
        }

    def _prepared_step(self) -> Callable[[], None]:
        """The step, captured where asked; everything is as it was before, but the optimizer has its state."""
        self._update()  # makes the optimizer's state
        self._use_kernels()
        changing = [*self.parameters.values(), self._position, self._sums, *self._guard.tensors]
        step = capture(self._update, changing, self.generators) if self.recipe.graph else self._update
        self.load_parameters_(self.initial)
        reset_(self.optimizer)
        self._position.zero_()
        self._sums.zero_()
        self._guard.reset_()
        return step

    def _raise_not_finite(self, steps_before: int) -> None:
        member, step = self._guard.first()
        index = self._index[:, step]
        losses, _ = self.losses(self.parameters, self.inputs(index), self.labels.gather(1, index))
        gradients = torch.autograd.grad(losses.sum(), list(self.parameters.values()))
        of_member = {name: g[member] for name, g in zip(self.parameters, gradients, strict=True)}
        where = culprit(losses[member], of_member)
        raise NotFinite(
            f"{where} of member {member} is not finite at step {steps_before + step + 1}; the update was not "
            "made. Lower --learning-rate, or leave this arm out"
        )


def member_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of each member over all of these stacked tensors taken as one vector.

    >>> member_norms([torch.ones(2, 3, 3), torch.ones(2, 7)])
    tensor([4., 4.])
    """
    each = [torch.linalg.vector_norm(t.detach(), dim=tuple(range(1, t.ndim))) for t in tensors]
    return torch.linalg.vector_norm(torch.stack(each), dim=0)


def _optimizer(recipe: Recipe, parameters: list[Tensor], device: torch.device) -> torch.optim.Optimizer:
    if recipe.optimizer == "SGD":
        return torch.optim.SGD(parameters, lr=recipe.learning_rate, fused=True)
    return torch.optim.Adam(parameters, lr=recipe.learning_rate, fused=True, capturable=device.type == "cuda")
