"""An image classifier that learns from files, from its first update to its last, on one or more processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from nap.lab.datasets.imagenet import load_imagenet
from nap.lab.loops.common.parallel import parallelism
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.supervised.build import build, learning_rates, resnet_factory
from nap.lab.loops.supervised.cifar_run import Row
from nap.lab.loops.supervised.classifier import WORTH_COMPILING, Classifier
from nap.lab.loops.supervised.loading import (
    Batch,
    EvalBatches,
    RunBatches,
    TrainBatches,
    batches_of,
    loader,
    workers_for,
)
from nap.lab.loops.supervised.random_resized_crop import ResizedCrops
from nap.lab.loops.supervised.shared_memory import check_room, in_plain_words
from nap.lab.loops.supervised.viewing import ImageNetConfig
from nap.lab.runner.distributed import current_group
from nap.lab.runner.work import OtherInputs

STRETCH = 10  # updates between two looks at signals; torchrun grants 30 seconds to the last ones and the save
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet's channels, the usual ones
Learning = Callable[[Tensor, Tensor], None]


class ImageNetWork:
    """The `Work` of one network: `step` is a few updates, and a row where one is due.

    Where torchrun started several processes, each has such a work and all make the same calls.

    Args:
        graph: each update is a replay of a recording; by default on CUDA, in a process that is alone.
        workers: how many processes decode images for this one.
    """

    unit = "updates"
    steps_per_unit = 1

    def __init__(
        self,
        what: NetworkRun,
        device: torch.device,
        *,
        compile_: bool | None = None,
        graph: bool | None = None,
        workers: int | None = None,
    ):
        self.what, self.device = what, device
        s: ImageNetConfig = what.settings
        group = current_group()
        if s.batch_size % group.world_size:
            raise ValueError(
                f"batch_size is {s.batch_size}, which {group.world_size} processes cannot share; "
                "change --batch-size, or how many torchrun starts"
            )
        if group.world_size > 1 and group.parallel != "ddp":
            raise ValueError(
                f"each process has a copy of this network (ddp), and not a piece of it ({group.parallel}); "
                "choose ddp, as is the default"
            )
        cuda = device.type == "cuda"
        self._graph = (cuda and group.world_size == 1) if graph is None else graph
        if self._graph and group.world_size > 1:
            raise ValueError(
                f"a graph is for a process that is alone, here are {group.world_size}: leave it out"
            )
        with group.rank0_first():
            found = load_imagenet(s.data, s.images)
        self._about, count = found.about, len(found.train)
        if count < s.batch_size:
            raise ValueError(f"a batch of {s.batch_size}, but {found.about} has {count} images; lower it")
        self._read = {"train": found.train.fingerprint, "test": found.test.fingerprint}
        looks = ResizedCrops(what.seed, size=s.size, resize=s.resize, smallest=s.smallest, flip=s.flip)
        self.needed = RunBatches(
            TrainBatches(found.train, looks, s.batch_size, rank=group.rank, world_size=group.world_size),
            EvalBatches(found.test, looks, s.batch_size, rank=group.rank, world_size=group.world_size),
        )
        self._workers = workers_for(device) if workers is None else workers
        check_room(self._workers, self.needed.batch_bytes)
        self._a_pass = self.needed.learnt.steps
        self._interval = s.every * self._a_pass  # updates between two rows
        self.total, self.done = s.epochs * self._a_pass, 0
        self._plan = partial(s.rate, a_pass=self._a_pass)
        self._rates = learning_rates(what.arm, self._plan, self.total, s)
        self._under_way: tuple[Learning, Iterator[Batch]] | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(what.seed)
            example = torch.zeros(2, s.size, s.size, 3, dtype=torch.uint8)
            model, projector = build(what.arm, resnet_factory(s, found.train.classes), prepared(example))
        model = model.to(device).to(memory_format=torch.channels_last)
        self.trainer = Classifier(
            model,
            projector,
            s,
            half=cuda,
            compile_=(cuda and self.total >= WORTH_COMPILING) if compile_ is None else compile_,
            parallel=parallelism(group),
        )

    @in_plain_words()
    def step(self) -> list[Row]:
        due = min(self.total, (self.done // self._interval + 1) * self._interval)
        last = min(due, self.done + STRETCH)
        self.trainer.model.train()
        if self._under_way is None:  # nothing can be recorded beside the thread that pins a stream's batches
            self._under_way = self._learning(), self._batches()
        learn, stream = self._under_way
        for step in range(self.done, last):
            images, labels = next(stream)
            self.trainer.set_rates_(*self._rates(step))
            learn(images, labels)
        self.trainer.watch.check()
        self.done = last
        before = (last - 1) // self._interval * self._interval
        rows = [self._row(last - before, stream)] if last == due else []
        if last == self.total:
            self._under_way = None  # its workers end
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "trainer": self.trainer.state_dict(), "read": self._read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["read"] != self._read:
            raise OtherInputs(
                f"the images of {self._about} are not those that this run began with: files were added, "
                "removed or renamed; bring them back, or begin anew with --force"
            )
        self.done, self._under_way = state["done"], None
        self.trainer.load_state_dict(state["trainer"])

    def _batches(self) -> Iterator[Batch]:
        """This process's share of every batch from here on, those that it is judged on among them."""
        left = self.needed.order(self.done, self.total, every=self._interval)
        found = loader(self.needed, left, workers=self._workers, pin=self.device.type == "cuda")
        return batches_of(found, self.device)

    def _learning(self) -> Learning:
        """What learns from a batch. A recording reads it from where each is copied to."""
        trainer, s = self.trainer, self.what.settings

        def learn(images: Tensor, labels: Tensor) -> None:
            trainer.update(prepared(images), labels)

        if not self._graph:
            return learn
        shown = torch.zeros(s.batch_size, s.size, s.size, 3, dtype=torch.uint8, device=self.device)
        named = torch.zeros(s.batch_size, dtype=torch.int64, device=self.device)
        replay = trainer.recorded(lambda: learn(shown, named))

        def learn_by_replay(images: Tensor, labels: Tensor) -> None:
            shown.copy_(images, non_blocking=True)
            named.copy_(labels, non_blocking=True)
            replay()

        return learn_by_replay

    def _row(self, updates: int, stream: Iterator[Batch]) -> Row:
        """What came of the last `updates`, judged on what comes next in the stream."""
        s: ImageNetConfig = self.what.settings
        row = {"arm": self.what.arm.name, **self.what.tags, "seed": self.what.seed, "step": self.done}
        row |= {"data": self._about, "epoch": self.done / self._a_pass}
        row |= self.trainer.read(updates * s.batch_size)
        shown = islice(stream, len(self.needed.judged))
        test = ((prepared(images), labels) for images, labels in shown)
        row |= self.trainer.judged(test) | self.trainer.numbers()
        return row | {"learning_rate": self._plan(self.done - 1)}


def prepared(images: Tensor) -> Tensor:
    """What a network is given: images (B, H, W, 3) of uint8 → (B, 3, H, W) in channels-last."""
    mean, std = _levels(images.device)
    return ((images.float() - mean) / std).permute(0, 3, 1, 2)


@cache  # a copy to a GPU waits for it, so there is one a process and not one an update
def _levels(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.tensor(MEAN, device=device), torch.tensor(STD, device=device)
