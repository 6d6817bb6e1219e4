"""Images in parquet shards, the form in which the Hugging Face hub exports ImageNet.

A shard gives up its rows by the hundred, and training asks for single images in random order. So the shards
are packed once: the images as they are, one after the other, in one file, with a list of where each begins.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nap.lab.data.once import made_once
from nap.lab.data.store import DataMissing, data_home

IMAGES, INDEX = "images.bin", "index.npz"
AT_ONCE = 256  # rows read from a shard together


class ShardPictures:
    """The images of one split, from the folder into which `packed` put them."""

    def __init__(self, folder: Path):
        self._file = folder / IMAGES
        with np.load(folder / INDEX) as index:
            self.labels = index["labels"]
            self._starts, self._firsts = index["starts"], index["firsts"]
            self._shards = index["shards"].tolist()
        self.classes = int(self.labels.max()) + 1

    def __len__(self) -> int:
        return len(self.labels)

    def encoded(self, number: int) -> bytes:
        first, after = self._starts[number : number + 2].tolist()
        with self._file.open("rb") as file:
            file.seek(first)
            return file.read(after - first)

    def name(self, number: int) -> str:
        shard = int(np.searchsorted(self._firsts, number, side="right")) - 1
        return f"row {number - self._firsts[shard]} of {self._shards[shard]} (packed in {self._file})"

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.labels.tobytes())
        digest.update(self._starts.tobytes())
        return digest.hexdigest()


def shards(folder: Path, split: str) -> list[Path]:
    """The parquet files of a split, here or in data/."""
    found = (sorted(where.glob(f"{split}-*.parquet")) for where in (folder, folder / "data"))
    return next((files for files in found if files), [])


def in_shards(folder: Path) -> tuple[ShardPictures, ShardPictures]:
    """The images of the train and validation shards, packed if they are not yet."""
    parts = []
    for split in ("train", "validation"):
        files = shards(folder, split)
        if not files:
            raise DataMissing(f"{folder} has no shards {split}-*.parquet; put them beside the others")
        parts.append(ShardPictures(packed(files, split)))
    train, validation = parts
    if validation.classes > train.classes:
        raise DataMissing(
            f"{folder}: the validation shards have a class {validation.classes - 1}, and the train shards "
            f"none above {train.classes - 1}; are some train shards missing?"
        )
    return train, validation


def packed(files: Sequence[Path], split: str) -> Path:
    """The folder below the data home that holds the images of these shards; it is made where need be."""
    sizes = [file.stat().st_size for file in files]
    key = hashlib.sha256(repr([(f.name, size) for f, size in zip(files, sizes, strict=True)]).encode())
    home = data_home() / "packed"
    folder = home / f"{split}-{key.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(home).free) < sum(sizes):
        raise DataMissing(
            f"the {split} shards are packed into {home}, which needs {sum(sizes):,} bytes and has {free:,}; "
            "make room, choose another place with the environment variable NAP_DATA, or unpack the shards "
            "yourself into train/CLASS/*.JPEG and val/CLASS/*.JPEG"
        )
    print(f"packing {len(files)} {split} shards into {folder}, once", file=sys.stderr)

    def fill(empty: Path) -> None:
        with (empty / IMAGES).open("wb") as out:
            index = _pack(files, out)
        np.savez(empty / INDEX, **index)

    return made_once(folder, fill)


def _pack(files: Sequence[Path], out: BinaryIO) -> dict[str, Any]:
    starts, firsts = [0], []
    labels: list[int] = []
    for file in files:
        firsts.append(len(labels))
        for image, label in _rows(file):
            if not image:
                raise DataMissing(
                    f"row {len(labels) - firsts[-1]} of {file} has no bytes of an image, only a path; "
                    "export the set with its images in the shards"
                )
            if label is None or label < 0:
                raise DataMissing(
                    f"row {len(labels) - firsts[-1]} of {file} has the label {label}: it has no class; "
                    "only the train and validation shards have"
                )
            out.write(image)
            starts.append(starts[-1] + len(image))
            labels.append(label)
    return {
        "starts": np.array(starts, np.int64),
        "labels": np.array(labels, np.int64),
        "firsts": np.array(firsts, np.int64),
        "shards": np.array([str(file) for file in files]),
    }


def _rows(file: Path) -> Iterator[tuple[bytes | None, int | None]]:
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(file) as shard:
            schema = shard.schema_arrow
            kinds = {
                name: str(schema.field(name).type) for name in ("image", "label") if name in schema.names
            }
            if "label" not in kinds or "bytes" not in kinds.get("image", ""):
                raise DataMissing(
                    f"{file} has the columns {', '.join(schema.names)}; expected image, with bytes and "
                    "path in it, and label"
                )
            for batch in shard.iter_batches(AT_ONCE, columns=["image", "label"]):
                images, labels = batch.column("image").field("bytes"), batch.column("label")
                yield from zip(images.to_pylist(), labels.to_pylist(), strict=True)
    except (arrow.ArrowException, OSError) as error:
        raise DataMissing(
            f"{file} cannot be read ({' '.join(str(error).split())}); fetch it again"
        ) from error


def _pyarrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataMissing(
            "parquet shards are read with pyarrow, which is not installed: "
            "pip install 'normalize-and-project[imagenet]'"
        ) from error
