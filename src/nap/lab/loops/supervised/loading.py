"""Batches of images from files, decoded by worker processes ahead of the step that learns from them.

A batch is requested by its number and is a function of that number: how many workers there are, which process
asks, and what was requested before make no difference. So a run resumes in the middle of an epoch. Batches to
learn from and to evaluate on come in one stream: workers start once, and go on to the next epoch during an
evaluation.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from nap.lab.datasets.image_files import BrokenImage, EncodedImages
from nap.lab.datasets.streams import batches
from nap.lab.loops.supervised.random_resized_crop import ResizedCrops
from nap.lab.loops.supervised.workers import PREFETCH, TIMEOUT_SECONDS, share_, signals_blocked, worker_init
from nap.lab.machine import cores, sharers

Batch = tuple[Tensor, Tensor]  # images (B, size, size, 3) of uint8, labels (B,) of int64
Item = tuple[Literal["train", "eval"], int]
MAX_WORKERS = 32
_OPEN: WeakSet[Generator[Batch, None, None]] = WeakSet()


class TrainBatches(Dataset[Batch | str]):
    """Item k is what this process, `rank` of `world_size`, learns from in update k."""

    def __init__(
        self,
        images: EncodedImages,
        crops: ResizedCrops,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.images, self.crops, self.batch_size = images, crops, batch_size
        self.steps_per_epoch = len(images) // batch_size
        self._shard = slice(rank * batch_size // world_size, (rank + 1) * batch_size // world_size)
        self.max_batch = self._shard.stop - self._shard.start

    def __getitem__(self, step: int) -> Batch | str:
        epoch, position = divmod(step, self.steps_per_epoch)
        order = _order(self.crops.seed, epoch, len(self.images), self.batch_size)
        numbers = order[position, self._shard].tolist()
        return _batch(self.images, numbers, (self.crops.sample(self.images, n, epoch) for n in numbers))


class EvalBatches(Dataset[Batch | str]):
    """Item k is the k-th batch of images that this process evaluates on; the last may be smaller."""

    def __init__(
        self,
        images: EncodedImages,
        crops: ResizedCrops,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.images, self.crops = images, crops
        numbers = range(rank, len(images), world_size)
        self._batches = [numbers[start : start + batch_size] for start in range(0, len(numbers), batch_size)]
        self.max_batch = min(batch_size, len(numbers))

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> Batch | str:
        numbers = self._batches[number]
        return _batch(self.images, numbers, (self.crops.center(self.images, n) for n in numbers))


class RunBatches(Dataset[Batch | str]):
    """All batches of a run: item ("train", k) is item k of `train`, ("eval", k) is item k of `eval`."""

    def __init__(self, train: TrainBatches, eval_: EvalBatches):
        self.train, self.eval = train, eval_

    @property
    def batch_bytes(self) -> int:
        """The size of the largest batch: three levels a pixel, and a label an image."""
        return max(self.train.max_batch, self.eval.max_batch) * (3 * self.train.crops.size**2 + 8)

    def __getitem__(self, item: Item) -> Batch | str:
        kind, number = item
        return self.train[number] if kind == "train" else self.eval[number]

    def order(self, done: int, total: int, *, eval_every: int) -> Iterator[Item]:
        """The items from update `done` on; with an evaluation after each `eval_every` and the last."""
        for update in range(done, total):
            yield "train", update
            if (update + 1) % eval_every == 0 or update + 1 == total:
                yield from (("eval", number) for number in range(len(self.eval)))


def loader(dataset: Any, items: Iterable[Any], *, workers: int, pin: bool) -> DataLoader[Any]:
    """Loads these items of the dataset in this order. Its workers live until the last one."""
    if not workers:
        return DataLoader(dataset, batch_size=None, sampler=items, pin_memory=pin)
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=items,
        pin_memory=pin,
        num_workers=workers,
        prefetch_factor=PREFETCH,
        multiprocessing_context="spawn",  # a fork would cut off the threads of CUDA and NCCL midway
        worker_init_fn=worker_init,
        timeout=TIMEOUT_SECONDS,
    )


def stream_batches(source: DataLoader[Any], device: torch.device) -> Iterator[Batch]:
    """The batches on the device, without waiting; raises where a worker met an image it cannot decode."""
    stream = _moved(source, device)
    _OPEN.add(stream)
    return stream


@atexit.register  # after torch's own, so it runs before it: from there on workers are not told to end
def _close() -> None:
    """End the workers of streams that an error has left open; the exit would wait for them forever."""
    for stream in list(_OPEN):
        stream.close()


def _moved(source: DataLoader[Any], device: torch.device) -> Generator[Batch, None, None]:
    with signals_blocked():
        stream = iter(source)
    try:
        for batch in stream:
            if isinstance(batch, str):
                raise BrokenImage(batch)
            images, labels = (part.to(device, non_blocking=True) for part in batch)
            yield images, labels
    finally:
        if hasattr(stream, "_shutdown_workers"):  # else they live as long as an error's traceback
            stream._shutdown_workers()


def workers_for(device: torch.device) -> int:
    """Number of workers of a process: $NAP_WORKERS, else a share of the cores beside a GPU, else none."""
    if word := os.environ.get("NAP_WORKERS"):
        if not word.isdecimal():
            raise ValueError(f"NAP_WORKERS={word}: expected a whole number of worker processes, 0 for none")
        return int(word)
    if device.type == "cpu":
        return 0
    return min(MAX_WORKERS, max(1, cores() // sharers()))


def _batch(images: EncodedImages, numbers: Sequence[int], crops: Iterable[np.ndarray]) -> Batch | str:
    """The batch; or the reason, in words, why there is none: an error would carry the worker's traceback."""
    try:
        pixels = torch.from_numpy(np.stack(list(crops)))
    except BrokenImage as error:
        return str(error)
    labels = torch.from_numpy(images.labels[list(numbers)])
    if get_worker_info() is not None:
        share_(pixels, labels)
    return pixels, labels


@lru_cache(maxsize=2)  # workers are an epoch apart at most
def _order(seed: int, epoch: int, count: int, batch_size: int) -> np.ndarray:
    order: np.ndarray = batches(seed, 1, epoch, count=count, batch_size=batch_size).numpy()
    return order
