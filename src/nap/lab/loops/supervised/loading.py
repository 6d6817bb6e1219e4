"""Batches of images from files, decoded by worker processes ahead of the step that learns from them.

A batch is asked for by its number, and is a function of that number: how many workers there are, which
process asks, and what was asked for before make no difference. So a run goes on in the middle of an epoch.
What it learns from and what it is judged on come in one stream: workers begin once, and go on to the next
epoch while the last one is judged.
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
from nap.lab.loops.supervised.shared_memory import PATIENCE_SECONDS, PREFETCH, put_there_
from nap.lab.loops.supervised.worker_init import settle, unsettled
from nap.lab.runner.machine import cores, sharers

Batch = tuple[Tensor, Tensor]  # images (B, size, size, 3) of uint8, labels (B,) of int64
Item = tuple[Literal["learn", "judge"], int]
MOST_WORKERS = 32
_OPEN: WeakSet[Generator[Batch, None, None]] = WeakSet()


class TrainBatches(Dataset[Batch | str]):
    """Item k is what this process, `rank` of `world_size`, learns from in update k."""

    def __init__(
        self,
        pictures: EncodedImages,
        crops: ResizedCrops,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.pictures, self.crops, self.batch_size = pictures, crops, batch_size
        self.steps = len(pictures) // batch_size  # of an epoch
        self._share = slice(rank * batch_size // world_size, (rank + 1) * batch_size // world_size)
        self.most = self._share.stop - self._share.start  # images of a batch

    def __getitem__(self, step: int) -> Batch | str:
        epoch, place = divmod(step, self.steps)
        order = _order(self.crops.seed, epoch, len(self.pictures), self.batch_size)
        numbers = order[place, self._share].tolist()
        return _batch(
            self.pictures, numbers, (self.crops.drawn(self.pictures, number, epoch) for number in numbers)
        )


class EvalBatches(Dataset[Batch | str]):
    """Item k is the k-th batch of images that this process is judged on; the last may be smaller."""

    def __init__(
        self,
        pictures: EncodedImages,
        crops: ResizedCrops,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.pictures, self.crops = pictures, crops
        numbers = range(rank, len(pictures), world_size)
        self._parts = [numbers[at : at + batch_size] for at in range(0, len(numbers), batch_size)]
        self.most = min(batch_size, len(numbers))  # images of a batch

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, place: int) -> Batch | str:
        numbers = self._parts[place]
        return _batch(self.pictures, numbers, (self.crops.plain(self.pictures, number) for number in numbers))


class RunBatches(Dataset[Batch | str]):
    """All that a run needs: item ("learn", k) is item k of `learnt`, ("judge", k) is item k of `judged`."""

    def __init__(self, learnt: TrainBatches, judged: EvalBatches):
        self.learnt, self.judged = learnt, judged

    @property
    def batch_bytes(self) -> int:
        """The size of the largest batch: three levels a pixel, and a label an image."""
        return max(self.learnt.most, self.judged.most) * (3 * self.learnt.crops.size**2 + 8)

    def __getitem__(self, item: Item) -> Batch | str:
        kind, number = item
        return self.learnt[number] if kind == "learn" else self.judged[number]

    def order(self, done: int, total: int, *, every: int) -> Iterator[Item]:
        """What is needed from update `done` on; each `every`-th is followed by a judgement, and the last."""
        for update in range(done, total):
            yield "learn", update
            if (update + 1) % every == 0 or update + 1 == total:
                yield from (("judge", place) for place in range(len(self.judged)))


def loader(dataset: Any, items: Iterable[Any], *, workers: int, pin: bool) -> DataLoader[Any]:
    """The dataset's items, these and in this order. Its workers live till it has been gone through."""
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
        worker_init_fn=settle,
        timeout=PATIENCE_SECONDS,
    )


def batches_of(found: DataLoader[Any], device: torch.device) -> Iterator[Batch]:
    """The batches on the device, without waiting; raises where a worker met an image it cannot decode."""
    stream = _moved(found, device)
    _OPEN.add(stream)
    return stream


@atexit.register  # after torch's own, so it comes before it: from there on workers are not told to end
def _close() -> None:
    """End the workers of streams that an error has left open; at exit they would be waited for, forever."""
    for stream in list(_OPEN):
        stream.close()


def _moved(found: DataLoader[Any], device: torch.device) -> Generator[Batch, None, None]:
    with unsettled():
        stream = iter(found)
    try:
        for batch in stream:
            if isinstance(batch, str):
                raise BrokenImage(batch)
            images, labels = (part.to(device, non_blocking=True) for part in batch)
            yield images, labels
    finally:
        if hasattr(stream, "_shutdown_workers"):  # they would live as long as an error's traceback keeps it
            stream._shutdown_workers()


def workers_for(device: torch.device) -> int:
    """How many workers a process has: $NAP_WORKERS, else a share of the cores beside a GPU, else none."""
    if word := os.environ.get("NAP_WORKERS"):
        if not word.isdecimal():
            raise ValueError(f"NAP_WORKERS={word}: expected a whole number of worker processes, 0 for none")
        return int(word)
    if device.type == "cpu":
        return 0
    return min(MOST_WORKERS, max(1, cores() // sharers()))


def _batch(pictures: EncodedImages, numbers: Sequence[int], crops: Iterable[np.ndarray]) -> Batch | str:
    """The batch; or, as words, why there is none: an error would travel with the worker's traceback in it."""
    try:
        images = torch.from_numpy(np.stack(list(crops)))
    except BrokenImage as error:
        return str(error)
    labels = torch.from_numpy(pictures.labels[list(numbers)])
    if get_worker_info() is not None:
        put_there_(images, labels)
    return images, labels


@lru_cache(maxsize=2)  # workers are an epoch apart at most
def _order(seed: int, epoch: int, count: int, batch_size: int) -> np.ndarray:
    order: np.ndarray = batches(seed, 1, epoch, count=count, batch_size=batch_size).numpy()
    return order
