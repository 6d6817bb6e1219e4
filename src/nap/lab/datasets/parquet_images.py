"""Images in parquet shards, the form in which the Hugging Face hub exports ImageNet.

A shard gives up its rows by the hundred, and training asks for single images in random order. So the shards
are packed once: the images as they are, one after the other, in one file, with a list of where each begins.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nap.lab.datasets.atomic import made_once
from nap.lab.datasets.shard_files import all_shards, rows
from nap.lab.datasets.store import DataMissing, data_home

IMAGES, INDEX = "images.bin", "index.npz"


class ShardPictures:
    """The images of one split, from these shards, and the folder into which `packed` put them."""

    def __init__(self, folder: Path, files: Sequence[Path]):
        self._file, self._shards = folder / IMAGES, list(files)
        index = _index(folder)
        self.labels, self._starts, self._firsts = index["labels"], index["starts"], index["firsts"]
        self._sums = index.get("sums")  # CRC-32 of each image; folders that are older have none
        self.classes = int(self.labels.max()) + 1

    def __len__(self) -> int:
        return len(self.labels)

    def encoded(self, number: int) -> bytes:
        first, after = self._starts[number : number + 2].tolist()
        with self._file.open("rb") as file:
            file.seek(first)
            image = file.read(after - first)
        if self._sums is not None and zlib.crc32(image) != self._sums[number]:
            raise ValueError("its bytes are not those that were packed")
        return image

    def name(self, number: int) -> str:
        shard = int(np.searchsorted(self._firsts, number, side="right")) - 1
        return f"row {number - self._firsts[shard]} of {self._shards[shard]} (packed in {self._file})"

    @property
    def mending(self) -> str:
        return f"fetch that shard again or, if it is good, delete {self._file.parent}; it is packed anew"

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.labels.tobytes())
        digest.update(self._starts.tobytes())
        return digest.hexdigest()


def in_shards(folder: Path) -> tuple[ShardPictures, ShardPictures]:
    """The images of the train and validation shards, packed if they are not yet."""
    files = {split: all_shards(folder, split) for split in ("train", "validation")}
    train, validation = (ShardPictures(packed(of, split), of) for split, of in files.items())
    if validation.classes > train.classes:
        raise DataMissing(
            f"{folder}: the validation shards have a class {validation.classes - 1}, and the train shards "
            f"none above {train.classes - 1}; are some train shards missing?"
        )
    return train, validation


def packed(files: Sequence[Path], split: str) -> Path:
    """The folder below the data home that holds the images of these shards; it is made where need be.

    A shard that was replaced, as its size or time of change tells, is another one.
    """
    found = [file.stat() for file in files]
    stamps = [(f.name, s.st_size, s.st_mtime_ns) for f, s in zip(files, found, strict=True)]
    key = hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
    folder = data_home() / "packed" / f"{split}-{key}"
    size = sum(of.st_size for of in found)

    def fill(empty: Path) -> None:
        older = (f"; {path} is of older ones, delete it if no run uses it" for path in _older(folder, files))
        old = "".join(older)
        if (free := shutil.disk_usage(empty).free) < size:
            raise DataMissing(
                f"the {split} shards are packed into {folder.parent}, which needs {size:,} bytes and has "
                f"{free:,}; make room, choose another place with the environment variable NAP_DATA, or "
                f"unpack the shards yourself into train/CLASS/*.JPEG and val/CLASS/*.JPEG{old}"
            )
        print(f"packing {len(files)} {split} shards into {folder}, once{old}", file=sys.stderr)
        with (empty / IMAGES).open("wb") as out:
            index = _pack(files, out)
            _to_disk(out)
        with (empty / INDEX).open("wb") as out:
            np.savez(out, **index)
            _to_disk(out)

    return made_once(folder, fill, damage=_damage)


def _older(folder: Path, files: Sequence[Path]) -> list[Path]:
    """Folders that were packed from the same shards, as these were before."""
    split = folder.name.partition("-")[0]
    beside = [path for path in folder.parent.glob(f"{split}-*") if os.access(path / INDEX, os.R_OK)]
    names = [str(file.absolute()) for file in files]
    return sorted(path for path in beside if not _damage(path) and _index(path)["shards"].tolist() == names)


def _damage(folder: Path) -> str:
    """What is wrong with a folder that `packed` made, "" for nothing."""
    try:
        index, size = _index(folder), (folder / IMAGES).stat().st_size
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError:  # of the disk or the network, which says nothing about the folder
        raise
    except Exception:  # a torn index raises EOFError, BadZipFile, ValueError and more
        return f"{INDEX} cannot be read"
    expected = int(index["starts"][-1])
    return "" if size == expected else f"{IMAGES} has {size:,} of {expected:,} bytes"


def _index(folder: Path) -> dict[str, Any]:
    with (folder / INDEX).open("rb") as file, np.load(file) as index:
        names = ("labels", "starts", "firsts", "shards")
        return {name: index[name] for name in (*names, *(["sums"] if "sums" in index else []))}


def _to_disk(file: BinaryIO) -> None:
    """So that after a power cut the folder is not there with half of this in it."""
    file.flush()
    os.fsync(file.fileno())


def _pack(files: Sequence[Path], out: BinaryIO) -> dict[str, Any]:
    starts, firsts = [0], []
    labels: list[int] = []
    sums: list[int] = []
    for file in files:
        firsts.append(len(labels))
        for image, label in rows(file):
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
            sums.append(zlib.crc32(image))
    if not labels:
        raise DataMissing(f"{files[0]} and the shards after it have no rows; fetch them again")
    return {
        "starts": np.array(starts, np.int64),
        "labels": np.array(labels, np.int64),
        "firsts": np.array(firsts, np.int64),
        "sums": np.array(sums, np.uint32),
        "shards": np.array([str(file.absolute()) for file in files]),
    }
