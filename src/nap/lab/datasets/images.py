"""Image sets as tensors of bytes and labels, read from verified files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nap.lab.datasets.catalog import find_images
from nap.lab.datasets.dataset import ImageSet, Split
from nap.lab.datasets.store import DataMissing, place, verified


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images: `pixels` (N, C, H, W) of uint8, `labels` (N,) of int64 below `classes`."""

    name: str
    pixels: Tensor
    labels: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.pixels)

    def part(self, first: int, last: int) -> Images:
        """The images `first` to `last` - 1."""
        return Images(self.name, self.pixels[first:last], self.labels[first:last], self.classes)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel over the set, in float64 levels from 0 to 255."""
        levels = torch.arange(256, dtype=torch.float64)
        counts = [torch.bincount(channel.flatten(), minlength=256) for channel in self.pixels.unbind(1)]
        share = torch.stack(counts).double() / counts[0].sum()  # exact, without a float64 copy
        mean = share @ levels
        std = ((levels - mean[:, None]).square() * share).sum(1).sqrt()
        if (std == 0).any():
            raise ValueError(
                f"the {len(self)} images of {self.name} have a channel of one value only, which has no "
                "standard deviation to divide by; load more of them"
            )
        return mean, std

    def normalised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The pixels with mean 0 and standard deviation 1 per channel over the set.

        >>> digits = load("digits", count=100).normalised(torch.float64)
        >>> bool(digits.mean().abs() < 1e-12), round(float(digits.std(correction=0)), 12)
        (True, 1.0)
        """
        mean, std = self.statistics()
        wide = dtype if dtype == torch.float64 else torch.float32
        scaled = self.pixels.to(wide).sub_(mean.to(wide)[:, None, None]).div_(std.to(wide)[:, None, None])
        return scaled.to(dtype)


def load(
    data: ImageSet | str, *, split: str = "train", folder: Path | str | None = None, count: int | None = None
) -> Images:
    """The images of a split, or the first `count` of them, from verified files; `folder` as in `fetch`.

    Raises `DataMissing` if files are missing.

    >>> digits = load("digits")
    >>> digits.pixels.shape, digits.classes
    (torch.Size([1797, 1, 8, 8]), 10)
    """
    data = find_images(data) if isinstance(data, str) else data
    if split not in data.splits:
        raise ValueError(f"{data.name} has no split {split!r}; it has {', '.join(data.splits)}")
    part = data.splits[split]
    if count is not None and not 1 <= count <= part.images:
        raise ValueError(
            f"count is {count}, but the {split} split of {data.name} has {part.images:,} images: "
            f"choose from 1 to {part.images:,}, or None for all"
        )
    count = part.images if count is None else count
    pixels, labels = _read(data, part, place(data, folder), count)
    numbers = torch.from_numpy(labels.astype(np.int64))
    return Images(data.name, torch.from_numpy(pixels), numbers, data.classes)


def _read(data: ImageSet, part: Split, where: Path, count: int) -> tuple[Bytes, Bytes]:
    if data.layout == "scikit-learn":
        return _digits(count)
    if data.layout == "idx":
        images, labels = verified(data, part.files, where)
        return read_idx(images, count).reshape(count, *data.shape), read_idx(labels, count)
    each = part.images // len(part.files)
    firsts = range(0, count, each)  # of each file that is needed
    paths = verified(data, part.files[: len(firsts)], where)
    sizes = [min(each, count - first) for first in firsts]
    batches = [read_cifar(path, data.shape, size) for path, size in zip(paths, sizes, strict=True)]
    return np.concatenate([pixels for pixels, _ in batches]), np.concatenate([names for _, names in batches])


def _digits(count: int) -> tuple[Bytes, Bytes]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataMissing("digits needs scikit-learn, which is missing: pip install scikit-learn") from error
    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # scikit-learn has 17 levels, 0 to 16
    return pixels[:count, None], digits.target[:count].astype(np.uint8)


Bytes = NDArray[np.uint8]


def read_idx(path: Path, count: int | None = None) -> Bytes:
    """The array in an idx file of bytes, or its first `count` entries.

    Header: two zero bytes, the type (8: unsigned byte), the number of dimensions, then each dimension
    as a big-endian 32-bit integer.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    >>> read_idx(path, count=2)
    array([7, 2], dtype=uint8)
    """
    with path.open("rb") as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:3] != b"\0\0\x08":
            raise ValueError(f"{path} is no idx file of bytes: it begins with {magic.hex(' ')}, not 00 00 08")
        sizes = np.frombuffer(file.read(4 * magic[3]), ">u4").tolist()
    shape = [sizes[0] if count is None else count, *sizes[1:]]
    return _bytes(path, math.prod(shape), skip=4 + 4 * len(sizes)).reshape(shape)


def read_cifar(path: Path, shape: tuple[int, int, int], count: int | None = None) -> tuple[Bytes, Bytes]:
    """Pixels (N, C, H, W) and labels (N,) of a binary batch, or of its first `count` images.

    Each record is one byte of label and then the pixels, channel by channel.
    """
    length = 1 + math.prod(shape)
    count = path.stat().st_size // length if count is None else count
    records = _bytes(path, count * length).reshape(count, length)
    return records[:, 1:].reshape(count, *shape), records[:, 0]


def _bytes(path: Path, count: int, skip: int = 0) -> Bytes:
    numbers = np.fromfile(path, np.uint8, count, offset=skip)
    if len(numbers) != count:
        raise ValueError(
            f"{path} ends early: {skip + count:,} bytes are needed, {skip + len(numbers):,} there"
        )
    return numbers


def split(name: str, held_out: int = 0) -> tuple[Images, Images]:
    """Training and test images. A set without test images gives the last fifth of its training images.

    With `held_out`, the last training images are returned as a validation set instead of the test images.

    >>> [len(part) for part in split("digits")], [len(part) for part in split("digits", held_out=38)]
    ([1438, 359], [1400, 38])
    """
    train = load(name)
    if "test" in find_images(name).splits:
        test = load(name, split="test")
    else:
        train, test = _cut(train, len(train) - len(train) // 5)
    if held_out >= len(train):
        raise ValueError(f"{held_out} of the {len(train)} images of {name} are held out; hold fewer out")
    return _cut(train, len(train) - held_out) if held_out else (train, test)


def _cut(images: Images, at: int) -> tuple[Images, Images]:
    return images.part(0, at), images.part(at, len(images))
