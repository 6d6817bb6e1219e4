"""The run of an image classifier on images in memory, epoch by epoch, evaluated on test images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nap.lab.datasets.images import split
from nap.lab.datasets.streams import batches
from nap.lab.loops.common.cuda_graph import graph_and_compile
from nap.lab.loops.common.work import NetworkRun, Row, seeded
from nap.lab.loops.supervised.cifar_trainer import CifarTrainer
from nap.lab.loops.supervised.random_crop import PaddedImages
from nap.lab.loops.supervised.settings import CifarConfig
from nap.lab.loops.supervised.stacked_trainer import StackedTrainer
from nap.lab.loops.supervised.trainer import WORTH_COMPILING, build, learning_rates, vgg_factory
from nap.lab.runner.work import NotFinite


class CifarWork:
    """The `Work` of one network, or of several: `step` is an epoch, or what is left of the updates.

    On a GPU several networks learn in one step (`nap.lab.loops.supervised.stacked_trainer`), and so does a
    single one whose training is long enough to compile: the stacked kernels are faster. They have no dropout.

    Args:
        stack: train with the stacked kernels; by default as above.
    """

    unit = "epochs"

    def __init__(
        self,
        run: NetworkRun,
        device: torch.device,
        *,
        compile_: bool | None = None,
        graph: bool | None = None,
        stack: bool | None = None,
    ):
        self.run, self.device = run, device
        s: CifarConfig = run.settings
        self._train, test = split(s.data, s.held_out)
        mean, std = self._train.statistics()
        options: dict[str, Any] = {"padding": s.crop_padding, "flip": s.flip, "padding_mode": s.padding_mode}
        self._images, self._test_images = (
            PaddedImages.of(part.pixels.to(device), mean, std, **options) for part in (self._train, test)
        )
        self._labels, self._test_labels = self._train.labels.to(device), test.labels.to(device)
        self._steps_per_epoch = len(self._train) // s.batch_size
        if not self._steps_per_epoch:
            raise ValueError(
                f"batch_size is {s.batch_size}, but {s.data} has {len(self._train)} images; lower it"
            )
        self.total, self.done = -(-s.steps // self._steps_per_epoch), 0
        self._rates = learning_rates(run.arm, s.rate, s.steps, s)
        self.steps_per_unit = self._steps_per_epoch * run.seeds_per_run
        cuda = device.type == "cuda"
        _, compile_ = graph_and_compile(device, s.steps, WORTH_COMPILING, graph=graph, compile_=compile_)
        if stack is None:
            stack = cuda and (run.seeds_per_run > 1 or (compile_ and not s.dropout))
        options = {"fused": False, "graph": False} if stack else {"compile_": compile_, "graph": graph}
        self.trainers = [self._trainer(seed, half=cuda, **options) for seed in run.seeds]
        self._stack = StackedTrainer(self.trainers, graph=graph) if stack else None

    @property
    def trainer(self) -> CifarTrainer:
        return self.trainers[0]

    def _trainer(self, seed: int, **options: Any) -> CifarTrainer:
        s: CifarConfig = self.run.settings
        example = self._images.center_crop(torch.arange(2, device=self.device)).cpu()
        with seeded(seed):
            make = vgg_factory(s, self._train.pixels.shape[1:], self._train.classes)
            model, projector = build(self.run.arm, make, example, over=s.norm_axes)
        model = model.to(self.device).to(memory_format=torch.channels_last)
        return CifarTrainer(model, projector, self._images, self._labels, s, **options)

    def step(self) -> list[Row]:
        s: CifarConfig = self.run.settings
        first_step = self.done * self._steps_per_epoch
        orders = [self._order(seed)[: s.steps - first_step] for seed in self.run.seeds]
        seeds = [(seed << 20) + self.done for seed in self.run.seeds]  # for what is random in this epoch
        if self._stack is not None:
            self._stack.train_epoch(orders, seeds, self._rates, first_step)
        else:
            for trainer, order, seed in zip(self.trainers, orders, seeds, strict=True):
                trainer.train_epoch(order, seed, self._rates, first_step)
        for trainer, seed in zip(self.trainers, self.run.seeds, strict=True):
            try:
                trainer.monitor.check()
            except NotFinite as error:
                raise NotFinite(f"of seed {seed}, {error}") from None
        self.done += 1
        if self.done % s.eval_every and self.done < self.total:
            return []
        last_step = first_step + len(orders[0])
        return [self._row(k, last_step) for k in range(len(self.trainers))]

    def state_dict(self) -> dict[str, Any]:
        states = [trainer.state_dict() for trainer in self.trainers]
        return {"done": self.done} | ({"trainer": states[0]} if len(states) == 1 else {"trainers": states})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        states = state["trainers"] if "trainers" in state else [state["trainer"]]
        for trainer, saved in zip(self.trainers, states, strict=True):
            trainer.load_state_dict(saved)
        if self._stack is not None:
            self._stack.refresh_()

    def _order(self, seed: int) -> Tensor:
        count, batch_size = len(self._train), self.run.settings.batch_size
        return batches(seed, 1, self.done, count=count, batch_size=batch_size).to(self.device)

    def _row(self, k: int, step: int) -> Row:
        s: CifarConfig = self.run.settings
        epochs = (self.done - 1) % s.eval_every + 1  # since the last row
        images = (step - (self.done - epochs) * self._steps_per_epoch) * s.batch_size
        trainer = self.trainers[k]
        row = self.run.row(self.run.seeds[k]) | {"step": step} | trainer.read(images)
        row |= trainer.evaluate_images(self._test_images, self._test_labels)
        return row | trainer.norms_and_rates() | {"learning_rate": s.rate(step - 1)}
