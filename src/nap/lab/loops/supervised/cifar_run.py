"""An image classifier from its first update to its last, pass by pass, judged on test images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nap.lab.datasets.images import split
from nap.lab.datasets.streams import batches
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.supervised.build import build, learning_rates, vgg_factory
from nap.lab.loops.supervised.classifier import WORTH_COMPILING
from nap.lab.loops.supervised.random_crop import PaddedImages
from nap.lab.loops.supervised.settings import CifarConfig
from nap.lab.loops.supervised.stacked_trainer import StackedTrainer
from nap.lab.loops.supervised.trainer import Trainer
from nap.lab.runner.work import NotFinite

Row = dict[str, Any]


class CifarWork:
    """The `Work` of one network: `step` is one pass over the images, or what is left of the updates.

    Of several networks, too, which on a GPU learn in one step (`nap.lab.loops.supervised.stacked_trainer`). A
    single one that is worth compiling learns in the same way there: on 32 × 32 images, with BatchNorm, those
    kernels are the faster ones. Not so with dropout, which is not drawn for each of several.
    """

    unit = "passes"

    def __init__(
        self,
        what: NetworkRun,
        device: torch.device,
        *,
        compile_: bool | None = None,
        graph: bool | None = None,
        stack: bool | None = None,
    ):
        self.what, self.device = what, device
        s: CifarConfig = what.settings
        self._train, test = split(s.data, s.held_out)
        mean, std = self._train.statistics()
        self._images, self._test = (
            PaddedImages.of(part.pixels.to(device), mean, std, edge=s.crop, flip=s.flip, edges=s.edges)
            for part in (self._train, test)
        )
        self._labels, self._test_labels = self._train.labels.to(device), test.labels.to(device)
        self._a_pass = len(self._train) // s.batch_size
        if not self._a_pass:
            raise ValueError(
                f"a batch of {s.batch_size}, but {s.data} has {len(self._train)} images; lower it"
            )
        self.total, self.done = -(-s.steps // self._a_pass), 0
        self._rates = learning_rates(what.arm, s.rate, s.steps, s)
        self.steps_per_unit = self._a_pass * what.together
        cuda = device.type == "cuda"
        if compile_ is None:
            compile_ = cuda and s.steps >= WORTH_COMPILING
        if stack is None:
            stack = cuda and (what.together > 1 or (compile_ and not s.dropout))
        options = {"quick": False, "graph": False} if stack else {"compile_": compile_, "graph": graph}
        self.trainers = [self._trainer(seed, half=cuda, **options) for seed in what.seeds]
        self._together = StackedTrainer(self.trainers, graph=graph) if stack else None

    @property
    def trainer(self) -> Trainer:
        """The first network's."""
        return self.trainers[0]

    def _trainer(self, seed: int, **options: Any) -> Trainer:
        s: CifarConfig = self.what.settings
        example = self._images.plain(torch.arange(2, device=self.device)).cpu()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            make = vgg_factory(s, self._train.pixels.shape[1:], self._train.classes)
            model, projector = build(self.what.arm, make, example, over=s.over)
        model = model.to(self.device).to(memory_format=torch.channels_last)
        return Trainer(model, projector, self._images, self._labels, s, **options)

    def step(self) -> list[Row]:
        s: CifarConfig = self.what.settings
        first = self.done * self._a_pass
        orders = [self._order(seed)[: s.steps - first] for seed in self.what.seeds]
        numbers = [(seed << 20) + self.done for seed in self.what.seeds]  # seeds for what this pass draws
        if self._together is not None:
            self._together.learn(orders, numbers, self._rates, first)
        else:
            for trainer, order, number in zip(self.trainers, orders, numbers, strict=True):
                trainer.learn(order, number, self._rates, first)
        for trainer, seed in zip(self.trainers, self.what.seeds, strict=True):
            try:
                trainer.watch.check()
            except NotFinite as error:
                raise NotFinite(f"of seed {seed}, {error}") from None
        self.done += 1
        if self.done % s.every and self.done < self.total:
            return []
        step = first + len(orders[0])
        return [self._row(k, step) for k in range(len(self.trainers))]

    def _order(self, seed: int) -> Tensor:
        count, batch_size = len(self._train), self.what.settings.batch_size
        return batches(seed, 1, self.done, count=count, batch_size=batch_size).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        states = [trainer.state_dict() for trainer in self.trainers]
        return {"done": self.done} | ({"trainer": states[0]} if len(states) == 1 else {"trainers": states})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        states = state["trainers"] if "trainers" in state else [state["trainer"]]
        for trainer, own in zip(self.trainers, states, strict=True):
            trainer.load_state_dict(own)
        if self._together is not None:
            self._together.refresh_()

    def _row(self, k: int, step: int) -> Row:
        s: CifarConfig = self.what.settings
        passes = (self.done - 1) % s.every + 1
        seen = (step - (self.done - passes) * self._a_pass) * s.batch_size
        trainer, seed = self.trainers[k], self.what.seeds[k]
        row = {"arm": self.what.arm.name, **self.what.tags, "seed": seed, "step": step}
        row |= trainer.read(seen) | trainer.judge(self._test, self._test_labels)
        return row | trainer.numbers() | {"learning_rate": s.rate(step - 1)}
