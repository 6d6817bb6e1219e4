"""The run of an image classifier on images in files, chunk by chunk, on one or more processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from nap.lab.datasets.imagenet import load_imagenet
from nap.lab.loops.common.cuda_graph import graph_and_compile
from nap.lab.loops.common.parallel import parallelism
from nap.lab.loops.common.work import NetworkRun, Row, next_chunk, seeded
from nap.lab.loops.supervised.loading import (
    Batch,
    EvalBatches,
    RunBatches,
    TrainBatches,
    loader,
    stream_batches,
    workers_for,
)
from nap.lab.loops.supervised.random_resized_crop import ResizedCrops
from nap.lab.loops.supervised.settings import ImageNetConfig
from nap.lab.loops.supervised.trainer import (
    WORTH_COMPILING,
    Trainer,
    build,
    learning_rates,
    resnet_factory,
)
from nap.lab.loops.supervised.workers import check_room, worker_errors_explained
from nap.lab.runner.distributed import current_group
from nap.lab.runner.work import OtherInputs

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of ImageNet's channels, the usual ones
Update = Callable[[Tensor, Tensor], None]


class ImageNetWork:
    """The `Work` of one network: `step` is a chunk of updates, with a row where one is due.

    Under torchrun each process has such a work, and all make the same calls.

    Args:
        graph: each update is a replay of a CUDA graph; by default on CUDA, in a single process.
        workers: number of processes that decode images for this one.
    """

    unit = "updates"
    steps_per_unit = 1

    def __init__(
        self,
        run: NetworkRun,
        device: torch.device,
        *,
        compile_: bool | None = None,
        graph: bool | None = None,
        workers: int | None = None,
    ):
        self.run, self.device = run, device
        s: ImageNetConfig = run.settings
        group = current_group()
        if s.batch_size % group.world_size:
            raise ValueError(
                f"batch_size is {s.batch_size}, which {group.world_size} processes cannot share; "
                "change --batch-size, or how many torchrun starts"
            )
        if group.world_size > 1 and group.parallel != "ddp":
            raise ValueError(
                f"each process has a replica of this network (ddp), not a shard of it ({group.parallel}); "
                "choose ddp, which is the default"
            )
        cuda = device.type == "cuda"
        self._graph = (cuda and group.world_size == 1) if graph is None else graph
        if self._graph and group.world_size > 1:
            raise ValueError(f"a graph is for a single process, here are {group.world_size}: leave it out")
        with group.rank0_first():
            data = load_imagenet(s.data, s.images)
        self._about = data.about
        if len(data.train) < s.batch_size:
            raise ValueError(
                f"batch_size is {s.batch_size}, but {data.about} has {len(data.train)} images; lower it"
            )
        self._inputs = {"train": data.train.fingerprint, "test": data.test.fingerprint}
        crops = ResizedCrops(
            run.seed, size=s.image_size, resize=s.resize, min_area=s.min_crop_area, flip=s.flip
        )
        share: dict[str, int] = {"rank": group.rank, "world_size": group.world_size}
        self.batches = RunBatches(
            TrainBatches(data.train, crops, s.batch_size, **share),
            EvalBatches(data.test, crops, s.batch_size, **share),
        )
        self._workers = workers_for(device) if workers is None else workers
        check_room(self._workers, self.batches.batch_bytes)
        self._steps_per_epoch = self.batches.train.steps_per_epoch
        self._eval_every = s.eval_every * self._steps_per_epoch  # updates between two rows
        self.total, self.done = s.epochs * self._steps_per_epoch, 0
        self._schedule = partial(s.rate, steps_per_epoch=self._steps_per_epoch)
        self._rates = learning_rates(run.arm, self._schedule, self.total, s)
        self._open: tuple[Update, Iterator[Batch]] | None = None
        _, compile_ = graph_and_compile(device, self.total, WORTH_COMPILING, graph=graph, compile_=compile_)
        example = torch.zeros(2, s.image_size, s.image_size, 3, dtype=torch.uint8)
        with seeded(run.seed):
            model, projector = build(run.arm, resnet_factory(s, data.train.classes), normalised(example))
        model = model.to(device).to(memory_format=torch.channels_last)
        self.trainer = Trainer(
            model,
            projector,
            s,
            half=cuda,
            compile_=compile_,
            parallel=parallelism(group),
        )

    @worker_errors_explained()
    def step(self) -> list[Row]:
        last, row_due = next_chunk(self.done, self.total, eval_every=self._eval_every)
        self.trainer.model.train()
        if self._open is None:  # no graph can be captured beside the thread that pins a stream's batches
            self._open = self._update(), self._stream()
        update, stream = self._open
        for step in range(self.done, last):
            images, labels = next(stream)
            self.trainer.set_rates_(*self._rates(step))
            update(images, labels)
        self.trainer.monitor.check()
        self.done = last
        rows = [self._row(stream)] if last == row_due else []
        if last == self.total:
            self._open = None  # its workers end
        return rows

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done, "trainer": self.trainer.state_dict(), "read": self._inputs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["read"] != self._inputs:
            raise OtherInputs(
                f"the images of {self._about} are not those that this run began with: files were added, "
                "removed or renamed; bring them back, or begin anew with --force"
            )
        self.done, self._open = state["done"], None
        self.trainer.load_state_dict(state["trainer"])

    def _stream(self) -> Iterator[Batch]:
        """This process's share of every batch from here on, those of evaluations among them."""
        items = self.batches.order(self.done, self.total, eval_every=self._eval_every)
        source = loader(self.batches, items, workers=self._workers, pin=self.device.type == "cuda")
        return stream_batches(source, self.device)

    def _update(self) -> Update:
        """The function that learns from a batch. A graph reads it from where each batch is copied to."""
        trainer, s = self.trainer, self.run.settings

        def update(images: Tensor, labels: Tensor) -> None:
            trainer.update(normalised(images), labels)

        if not self._graph:
            return update
        shape = (s.batch_size, s.image_size, s.image_size, 3)
        static_images = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        static_labels = torch.zeros(s.batch_size, dtype=torch.int64, device=self.device)
        replay = trainer.captured(lambda: update(static_images, static_labels))

        def update_by_replay(images: Tensor, labels: Tensor) -> None:
            static_images.copy_(images, non_blocking=True)
            static_labels.copy_(labels, non_blocking=True)
            replay()

        return update_by_replay

    def _row(self, stream: Iterator[Batch]) -> Row:
        """The updates since the last row, and an evaluation on the next batches of the stream."""
        s: ImageNetConfig = self.run.settings
        updates = (self.done - 1) % self._eval_every + 1  # since the last row
        row = self.run.row() | {"step": self.done, "data": self._about}
        row |= {"epoch": self.done / self._steps_per_epoch} | self.trainer.read(updates * s.batch_size)
        test = ((normalised(images), labels) for images, labels in islice(stream, len(self.batches.eval)))
        row |= self.trainer.evaluate(test) | self.trainer.norms_and_rates()
        return row | {"learning_rate": self._schedule(self.done - 1)}


def normalised(images: Tensor) -> Tensor:
    """Input of a network: images (B, H, W, 3) of uint8 → (B, 3, H, W) in channels-last."""
    mean, std = _levels(images.device)
    return ((images.float() - mean) / std).permute(0, 3, 1, 2)


@cache  # a copy to a GPU synchronises, so there is one a process and not one an update
def _levels(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.tensor(MEAN, device=device), torch.tensor(STD, device=device)
