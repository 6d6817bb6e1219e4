"""An image classifier that learns from images on its device, pass by pass; on CUDA an update is one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import nap
from nap.lab.loops.supervised.classifier import Classifier, Rates
from nap.lab.loops.supervised.random_crop import PaddedImages
from nap.lab.loops.supervised.settings import CifarConfig

AT_ONCE = 1000  # images that are judged together


class Trainer(Classifier):
    """A classifier and the images that it learns from.

    Args:
        graph: each update is a replay of a recording; by default on CUDA.
        quick: weights are updated by kernels of our own (`nap.lab.loops.supervised.fused_sgd`), for products
            in bfloat16 and SGD with momentum; by default where each update is a replay, and Triton is there.
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
        quick: bool | None = None,
    ):
        super().__init__(model, projector, settings, half=half, compile_=compile_)
        self.images, self.labels = images, labels
        device = labels.device
        self.generator = torch.Generator(device)
        a_pass = len(labels) // settings.batch_size
        # of each update of a pass: numbers of its images, their labels, their tops, lefts and mirrorings
        self.draws = torch.zeros(a_pass, 5, settings.batch_size, dtype=torch.int64, device=device)
        self._at = torch.zeros((), dtype=torch.int64, device=device)
        self._graph = device.type == "cuda" if graph is None else graph
        self._step: Callable[[], None] | None = None
        if compile_:
            self._note_ = torch.compile(self._note_, dynamic=False)  # type: ignore[method-assign]
        able = half and settings.momentum > 0
        if quick and not able:
            raise ValueError("quick updates are for bfloat16 and SGD with momentum: leave quick out")
        wanted = self._graph if quick is None else quick
        self._descent = self._made(must=bool(quick)) if able and wanted else None

    def _made(self, *, must: bool) -> Any:
        """What makes updates quickly; None where Triton is not installed, and need not be."""
        try:
            from nap.lab.loops.supervised.fused_sgd import FusedSGD
        except ImportError:  # it comes with the CUDA builds of torch only
            if must:
                raise
            return None
        return FusedSGD([self.optimizer], self.parameters, self.radii(), self.watch.broken)

    def radii(self) -> dict[int, Tensor]:
        """By place among the parameters: the norms that weights are kept at."""
        if self.projector is None:
            return {}
        kept = self.projector.state_dict()
        asked = {"every": 1, "per": "tensor", "affine": "free"}
        if kept["settings"] != kept["settings"] | asked:
            raise ValueError(f"quick updates project as {asked} says, not as {kept['settings']}")
        names = [name for name, _ in self.model.named_parameters()]
        return {names.index(name): radius.to(self.right.device) for name, radius in kept["radii"].items()}

    def draw(self, order: Tensor, seed: int) -> None:
        """Note the batches of `order` (steps, batch), and how each image is to be looked at, from `seed`."""
        self.generator.manual_seed(seed)
        places = self.images.places(order.shape, self.generator)
        self.draws[: len(order)].copy_(torch.stack([order, self.labels[order], *places], 1))
        self._at.zero_()

    def learn(self, order: Tensor, seed: int, rates: Rates, first: int) -> None:
        """Learn from the batches of `order` (steps, batch); update `first` is the number of its first.

        What is random is drawn from `seed`.
        """
        self.model.train()
        self.draw(order, seed)
        if self._step is None:
            self._step = self._recorded() if self._graph else self._next
        now, device = None, self.labels.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(-1 - seed)  # for dropout, which need not look like the crops
            for step in range(len(order)):
                if now != (now := rates(first + step)):
                    self.set_rates_(*now)
                self._step()

    def judge(self, images: PaddedImages, labels: Tensor) -> dict[str, float]:
        """Loss and accuracy on images as they are, without learning."""

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for index in torch.arange(len(labels), device=labels.device).split(AT_ONCE):
                yield images.plain(index), labels[index]

        return self.judged(batches())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self._descent is not None:
            self._descent.refresh_(self.radii())
        else:
            self._step = None  # the projector has other radii now than those that a recording reads

    def _next(self) -> None:
        self.update(self.draws, self._at)

    def _learnt_loss(self, draws: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        net: Callable[[Tensor], Tensor] = self.net
        if self._descent is not None:
            names = dict(self.model.named_parameters())
            net = partial(functional_call, self.model, dict(zip(names, self._descent.leaves, strict=True)))
        return self.loss_at(net, draws, at)

    def loss_at(self, net: Callable[[Tensor], Tensor], draws: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Of the batch that stands at `at` among `draws`: the loss, and how many predictions are right."""
        index, labels, *places = draws.index_select(0, at.view(1)).squeeze(0)
        images = self.images.drawn(index, torch.stack(places))
        return self._loss_of(net, images, labels, self.recipe.smoothing)

    def _gradient_norms(self, loss: Tensor) -> Tensor:
        if self._descent is None:
            return super()._gradient_norms(loss)
        norms: Tensor = self._descent.norms(torch.autograd.grad(loss, self._descent.leaves))
        return norms

    def _note_(self, loss: Tensor, right: Tensor, norms: Tensor) -> None:
        super()._note_(loss, right, norms)
        self._at.copy_((self._at + 1) % len(self.draws))  # a recording makes a few, even if a pass has fewer

    def _descend_(self) -> None:
        if self._descent is None:
            super()._descend_()
        else:
            self._descent.step_()

    def _recorded(self) -> Callable[[], None]:
        """The update as a graph."""
        copies = [] if self._descent is None else self._descent.copies.values()
        replay = self.recorded(self._next, self._at, *copies)
        if self._descent is not None:
            self._descent.send_()
        return replay
