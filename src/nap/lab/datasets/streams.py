"""Streams of tasks over one image set: each task has its own labels or its own order of pixels.

Nothing here has state. Random numbers are a pure function of (seed, purpose, task, epoch), so a resumed run
has the same tasks, and so has each member of a population as its single run. For a sequence of seeds, results
are stacked along a first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import index
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nap.lab.datasets.images import Images

Seeds = int | Sequence[int]
Kind = Literal["random labels", "permuted labels", "permuted pixels"]


class Purpose(IntEnum):
    """What random numbers are for. The values determine results: never change them."""

    RANDOM_LABELS = 1
    PERMUTED_LABELS = 2
    PERMUTED_PIXELS = 3
    BATCHES = 4


def generator(seed: int, purpose: int, task: int, epoch: int = 0) -> np.random.Generator:
    """A new generator for one purpose, the same on every platform.

    >>> int(generator(0, Purpose.BATCHES, task=1).integers(1000))
    661
    """
    key = {"seed": seed, "purpose": purpose, "task": task, "epoch": epoch}
    for name, value in key.items():
        if not 0 <= value < 2**32:  # numpy splits larger numbers, so that keys could collide
            raise ValueError(f"{name} is {value}, but it must be from 0 to 2³² − 1")
    return np.random.default_rng([index(value) for value in key.values()])


@dataclass(frozen=True)
class Stream:
    """A sequence of tasks over the same images, from 1 on; the first is as random as the others.

    "random labels": each image gets a uniformly random class (Appendix on vision).
    "permuted labels": the classes are permuted.
    "permuted pixels": pixels are permuted, in the same way for all images and channels.
    """

    kind: Kind

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"there is no stream {self.kind!r}; choose from {', '.join(get_args(Kind))}")

    def labels(self, seed: Seeds, task: int, images: Images) -> Tensor:
        """Labels of the task, int64: (N,) for one seed, (K, N) for K of them.

        >>> from nap.lab.datasets.images import load
        >>> Stream("random labels").labels([0, 1], task=1, images=load("digits")).shape
        torch.Size([2, 1797])
        """
        _require_task(task)
        original = images.labels.cpu().numpy()

        def sample(member: int) -> NDArray[np.int64]:
            if self.kind == "random labels":
                draws = generator(member, Purpose.RANDOM_LABELS, task)
                return draws.integers(images.classes, size=len(original), dtype=np.int64)
            if self.kind == "permuted labels":
                names = generator(member, Purpose.PERMUTED_LABELS, task).permutation(images.classes)
                return names.astype(np.int64)[original]
            return original

        return _for_each(seed, sample, len(original))

    def pixel_order(self, seed: Seeds, task: int, images: Images) -> Tensor | None:
        """The source position of each pixel, (H·W,) or (K, H·W), for "permuted pixels"; else None."""
        _require_task(task)
        if self.kind != "permuted pixels":
            return None
        count = images.pixels[0, 0].numel()
        return _for_each(
            seed, lambda member: generator(member, Purpose.PERMUTED_PIXELS, task).permutation(count), count
        )


def reorder(pixels: Tensor, order: Tensor) -> Tensor:
    """Images (…, H, W) with the pixel at `order[i]` moved to position i; `torch.vmap` it over members.

    >>> reorder(torch.tensor([[1, 2], [3, 4]]), torch.tensor([3, 2, 1, 0]))
    tensor([[4, 3],
            [2, 1]])
    """
    return pixels.flatten(-2)[..., order].reshape(pixels.shape)


def batches(seed: Seeds, task: int, epoch: int, *, count: int, batch_size: int) -> Tensor:
    """Indices of the epoch's batches, int64: (steps, batch) for one seed, (K, steps, batch) for K of them.

    Each epoch shuffles all `count` examples; a last batch that is not full is left out.

    >>> batches(0, task=1, epoch=0, count=10, batch_size=4).shape
    torch.Size([2, 4])
    """
    _require_task(task)
    if not 1 <= batch_size <= count:
        raise ValueError(f"batch_size is {batch_size}, but {count} examples make batches of 1 to {count}")
    steps = count // batch_size

    def sample(member: int) -> NDArray[np.int64]:
        order = generator(member, Purpose.BATCHES, task, epoch).permutation(count)
        return order[: steps * batch_size]

    indices = _for_each(seed, sample, steps * batch_size)
    return indices.view(*indices.shape[:-1], steps, batch_size)


def _for_each(seed: Seeds, sample: Callable[[int], NDArray[np.int64]], length: int) -> Tensor:
    """The sample of one seed, or those of all seeds stacked."""
    if isinstance(seed, int | np.integer):
        return torch.from_numpy(sample(seed).astype(np.int64))
    stacked = np.empty((len(seed), length), np.int64)
    for row, member in zip(stacked, seed, strict=True):
        row[:] = sample(member)
    return torch.from_numpy(stacked)


def _require_task(task: int) -> None:
    if task < 1:
        raise ValueError(f"task is {task}, but tasks count from 1")
