"""The two file formats of the image sets: idx (MNIST) and CIFAR-10's binary batches."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
    found = np.fromfile(path, np.uint8, count, offset=skip)
    if len(found) != count:
        raise ValueError(f"{path} ends early: {skip + count:,} bytes are needed, {skip + len(found):,} there")
    return found
