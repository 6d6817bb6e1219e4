"""An image classifier that learns from images on its device; on CUDA an update is one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import nap
from nap.lab.loops.supervised.random_crop import PaddedImages
from nap.lab.loops.supervised.settings import CifarConfig
from nap.lab.loops.supervised.trainer import Rates, Trainer

EVAL_BATCH = 1000  # images


class CifarTrainer(Trainer):
    """A trainer that has its images on the device.

    Args:
        graph: each update is a replay of a CUDA graph; by default on CUDA.
        fused: update with `fused_sgd`, in bfloat16 and with momentum; by default with `graph` and Triton.
    """

    def __init__(
        self,
        model: nn.Module,
        projector: nap.Projector | None,
        images: PaddedImages,
        labels: Tensor,
        settings: CifarConfig,
        *,
        half: bool = False,
        compile_: bool = False,
        graph: bool | None = None,
        fused: bool | None = None,
    ):
        super().__init__(model, projector, settings, half=half, compile_=compile_)
        self.images, self.labels = images, labels
        device = labels.device
        self.generator = torch.Generator(device)
        steps_per_epoch = len(labels) // settings.batch_size
        # of each update of an epoch: image numbers, labels, and tops, lefts and flips of the crops
        self.batches = torch.zeros(steps_per_epoch, 5, settings.batch_size, dtype=torch.int64, device=device)
        self._position = torch.zeros((), dtype=torch.int64, device=device)
        self._graph = device.type == "cuda" if graph is None else graph
        self._step: Callable[[], None] | None = None
        if compile_:
            self._record_ = torch.compile(self._record_, dynamic=False)  # type: ignore[method-assign]
        able = half and settings.momentum > 0
        if fused and not able:
            raise ValueError("fused updates are for bfloat16 and SGD with momentum: leave fused out")
        wanted = self._graph if fused is None else fused
        self._fused_sgd = self._make_fused_sgd(required=bool(fused)) if able and wanted else None

    def _make_fused_sgd(self, *, required: bool) -> Any:
        """The fused optimizer; None where Triton is missing, unless it is required."""
        try:
            from nap.lab.loops.supervised.fused_sgd import FusedSGD
        except ImportError:  # it comes with the CUDA builds of torch only
            if required:
                raise
            return None
        return FusedSGD([self.optimizer], self.parameters, self.radii(), self.monitor.broken)

    def radii(self) -> dict[int, Tensor]:
        """The norms that weights are kept at, by position among the parameters."""
        if self.projector is None:
            return {}
        state = self.projector.state_dict()
        supported = {"every": 1, "per": "tensor", "affine": "free"}
        if state["settings"] != state["settings"] | supported:
            raise ValueError(f"fused updates project as {supported} says, not as {state['settings']}")
        names = [name for name, _ in self.model.named_parameters()]
        device = self.num_correct.device
        return {names.index(name): radius.to(device) for name, radius in state["radii"].items()}

    def load_epoch_(self, order: Tensor, seed: int) -> None:
        """Set the batches of `order` (steps, batch), with crops drawn from `seed`."""
        self.generator.manual_seed(seed)
        crops = self.images.sample(order.shape, self.generator)
        self.batches[: len(order)].copy_(torch.stack([order, self.labels[order], *crops], 1))
        self._position.zero_()

    def train_epoch(self, order: Tensor, seed: int, rates: Rates, first_step: int) -> None:
        """Learn from the batches of `order` (steps, batch), the first of which is update `first_step`.

        What is random is drawn from `seed`.
        """
        self.model.train()
        self.load_epoch_(order, seed)
        if self._step is None:
            self._step = self._capture() if self._graph else self._next_update
        current, device = None, self.labels.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(-1 - seed)  # for dropout, which must not look like the crops
            for step in range(len(order)):
                if current != (current := rates(first_step + step)):
                    self.set_rates_(*current)
                self._step()

    def evaluate_images(self, images: PaddedImages, labels: Tensor) -> dict[str, float]:
        """Loss and accuracy on images as they are."""

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for index in torch.arange(len(labels), device=labels.device).split(EVAL_BATCH):
                yield images.center_crop(index), labels[index]

        return self.evaluate(batches())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self._fused_sgd is not None:
            self._fused_sgd.refresh_(self.radii())
        else:
            self._step = None  # the projector now has other radii than those that a graph reads

    def _next_update(self) -> None:
        self.update(self.batches, self._position)

    def _training_loss(self, batches: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        net: Callable[[Tensor], Tensor] = self.net
        if self._fused_sgd is not None:
            names = dict(self.model.named_parameters())
            net = partial(functional_call, self.model, dict(zip(names, self._fused_sgd.leaves, strict=True)))
        return self.loss_at(net, batches, position)

    def loss_at(
        self, net: Callable[[Tensor], Tensor], batches: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Loss and number of correct predictions on the batch at `position`."""
        index, labels, *crops = batches.index_select(0, position.view(1)).squeeze(0)
        images = self.images.random_crop(index, torch.stack(crops))
        return self._loss_and_correct(net, images, labels, self.settings.label_smoothing)

    def _backward(self, loss: Tensor) -> Tensor:
        if self._fused_sgd is None:
            return super()._backward(loss)
        gradients = torch.autograd.grad(loss, self._fused_sgd.leaves)
        norms: Tensor = self._fused_sgd.gradient_norms(gradients)
        return norms

    def _record_(self, loss: Tensor, correct: Tensor, norms: Tensor) -> None:
        super()._record_(loss, correct, norms)
        # a capture makes a few updates, even if an epoch has fewer
        self._position.copy_((self._position + 1) % len(self.batches))

    def _apply_update_(self) -> None:
        if self._fused_sgd is None:
            super()._apply_update_()
        else:
            self._fused_sgd.step_()

    def _capture(self) -> Callable[[], None]:
        copies = [] if self._fused_sgd is None else self._fused_sgd.copies.values()
        replay = self.captured(self._next_update, self._position, *copies)
        if self._fused_sgd is not None:
            self._fused_sgd.upload_addresses_()
        return replay
