"""An image classifier from its first update to its last, pass by pass, judged on test images."""

from __future__ import annotations

from typing import Any

import torch

from nap.lab.data.splits import split
from nap.lab.data.streams import batches
from nap.lab.training.network_run import NetworkRun
from nap.lab.vision.augment import Crops
from nap.lab.vision.classifier import WORTH_COMPILING
from nap.lab.vision.settings import Seeing
from nap.lab.vision.trainer import Trainer

Row = dict[str, Any]


class VisionWork:
    """The `Work` of one network: `advance` is one pass over the images, or what is left of the updates."""

    unit = "passes"

    def __init__(
        self,
        what: NetworkRun,
        device: torch.device,
        *,
        compile_: bool | None = None,
        graph: bool | None = None,
    ):
        self.what, self.device = what, device
        s: Seeing = what.settings
        cuda = device.type == "cuda"
        train, test = split(s.data, s.held_out)
        mean, std = train.statistics()
        images, self._test = (
            Crops.of(part.pixels.to(device), mean, std, edge=s.crop, flip=s.flip, edges=s.edges)
            for part in (train, test)
        )
        self._test_labels = test.labels.to(device)
        self._count, self._a_pass = len(train), len(train) // s.batch_size
        if not self._a_pass:
            raise ValueError(f"a batch of {s.batch_size}, but {s.data} has {len(train)} images; lower it")
        self.total, self.done = -(-s.steps // self._a_pass), 0
        self.steps_per_unit = self._a_pass
        example = images.plain(torch.arange(2, device=device)).cpu()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(what.seed)
            model, projector = what.arm.build(
                s.make(train.pixels.shape[1:], train.classes), example, over=s.over
            )
        model = model.to(device).to(memory_format=torch.channels_last)
        self.trainer = Trainer(
            model,
            projector,
            images,
            train.labels.to(device),
            s,
            half=cuda,
            compile_=(cuda and s.steps >= WORTH_COMPILING) if compile_ is None else compile_,
            graph=graph,
        )

    def advance(self) -> list[Row]:
        s: Seeing = self.what.settings
        first = self.done * self._a_pass
        order = batches(self.what.seed, 1, self.done, count=self._count, batch_size=s.batch_size)
        order = order[: s.steps - first]
        self.trainer.learn(order.to(self.device), self._number(), s.rate, first)
        self.trainer.watch.check()
        self.done += 1
        if self.done % s.every and self.done < self.total:
            return []
        return [self._row(first + len(order))]

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "trainer": self.trainer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        self.trainer.load_state_dict(state["trainer"])

    def _row(self, step: int) -> Row:
        s: Seeing = self.what.settings
        passes = (self.done - 1) % s.every + 1
        seen = (step - (self.done - passes) * self._a_pass) * s.batch_size
        row = {"arm": self.what.arm.name, **self.what.tags, "seed": self.what.seed, "step": step}
        row |= self.trainer.read(seen) | self.trainer.judge(self._test, self._test_labels)
        return row | self.trainer.numbers() | {"learning_rate": s.rate(step - 1)}

    def _number(self) -> int:
        """A seed for what this pass draws."""
        return (self.what.seed << 20) + self.done
