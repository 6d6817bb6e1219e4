"""An image classifier that learns from images on its device, pass by pass; on CUDA an update is one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import nap
from nap.lab.training.graph import captured
from nap.lab.vision.augment import Crops
from nap.lab.vision.classifier import Classifier
from nap.lab.vision.settings import Seeing

AT_ONCE = 1000  # images that are judged together


class Trainer(Classifier):
    """A classifier and the images that it learns from.

    Args:
        graph: each update is a replay of a recording; by default on CUDA.
    """

    def __init__(
        self,
        model: nn.Module,
        projector: nap.Projector | None,
        images: Crops,
        labels: Tensor,
        settings: Seeing,
        *,
        half: bool = False,
        compile_: bool = False,
        graph: bool | None = None,
    ):
        super().__init__(model, projector, settings, half=half, compile_=compile_)
        self.images, self.labels = images, labels
        device = labels.device
        self.generator = torch.Generator(device)
        a_pass = len(labels) // settings.batch_size
        self.order = torch.zeros(a_pass, settings.batch_size, dtype=torch.int64, device=device)
        self._at = torch.zeros((), dtype=torch.int64, device=device)
        self._graph = device.type == "cuda" if graph is None else graph
        self._step: Callable[[], None] | None = None

    def learn(self, order: Tensor, seed: int, rates: Callable[[int], float], first: int) -> None:
        """Learn from the batches of `order` (steps, batch); update `first` is the number of its first.

        What is random is drawn from `seed`.
        """
        self.model.train()
        self.order[: len(order)].copy_(order)
        self._at.zero_()
        if self._step is None:
            self._step = self._recorded() if self._graph else self._next
        self.generator.manual_seed(seed)
        rate = None
        for step in range(len(order)):
            if rate != (rate := rates(first + step)):
                self.rate.fill_(rate)
            self._step()

    def judge(self, images: Crops, labels: Tensor) -> dict[str, float]:
        """Loss and accuracy on images as they are, without learning."""

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for index in torch.arange(len(labels), device=labels.device).split(AT_ONCE):
                yield images.plain(index), labels[index]

        return self.judged(batches())

    def _next(self) -> None:
        index = self.order.index_select(0, self._at.view(1)).squeeze(0)
        self.update(self.images.drawn(index, self.generator), self.labels[index])
        self._at.add_(1).remainder_(len(self.order))  # a recording makes a few, even if a pass has fewer

    def _recorded(self) -> Callable[[], None]:
        """The update as a graph; all that it changes comes out of the recording as it was."""
        momenta = [buffer for state in self.optimizer.state.values() for buffer in state.values()]
        tallies = [*self.watch.tensors, self._at, self._right]
        changing = [*self.parameters, *momenta, *self.model.buffers(), *tallies]
        return captured(self._next, changing, [self.generator])
