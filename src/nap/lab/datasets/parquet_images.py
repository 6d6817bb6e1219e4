"""Images in parquet shards, as the Hugging Face hub exports ImageNet.

Shards are read in batches of rows, but training needs single images in random order. So the encoded images
are packed into one file once, with an index of offsets.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from nap.lab.datasets.atomic import atomic_dir
from nap.lab.datasets.store import DataMissing, data_home

IMAGES, INDEX = "images.bin", "index.npz"


class ParquetImages:
    """The images of one split, in a folder made by `pack_shards`."""

    def __init__(self, folder: Path, files: Sequence[Path]):
        self._file, self._shards = folder / IMAGES, list(files)
        index = _index(folder)
        self.labels, self._starts, self._firsts = index["labels"], index["starts"], index["firsts"]
        self._sums = index.get("sums")  # CRC-32 of each image; older folders have none
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
    def advice(self) -> str:
        return f"fetch that shard again or, if it is good, delete {self._file.parent}; it is packed anew"

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.labels.tobytes())
        digest.update(self._starts.tobytes())
        return digest.hexdigest()


def load_parquet_images(folder: Path) -> tuple[ParquetImages, ParquetImages]:
    """The images of the train and validation shards, which are packed the first time."""
    files = {split: all_shards(folder, split) for split in ("train", "validation")}
    train, validation = (ParquetImages(pack_shards(of, split), of) for split, of in files.items())
    if validation.classes > train.classes:
        raise DataMissing(
            f"{folder}: the validation shards have a class {validation.classes - 1}, and the train shards "
            f"none above {train.classes - 1}; are some train shards missing?"
        )
    return train, validation


def pack_shards(files: Sequence[Path], split: str) -> Path:
    """The folder with the packed images of these shards, in the data home; packs them if need be.

    A shard with another size or time of change gets another folder.
    """
    stats = [file.stat() for file in files]
    stamps = [(f.name, s.st_size, s.st_mtime_ns) for f, s in zip(files, stats, strict=True)]
    key = hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]
    folder = data_home() / "packed" / f"{split}-{key}"
    size = sum(stat.st_size for stat in stats)

    def fill(empty: Path) -> None:
        older = _older(folder, files)
        old = "".join(f"; {path} is of older ones, delete it if no run uses it" for path in older)
        if (free := shutil.disk_usage(empty).free) < size:
            raise DataMissing(
                f"the {split} shards are packed into {folder.parent}, which needs {size:,} bytes and has "
                f"{free:,}; make room, choose another place with the environment variable NAP_DATA, or "
                f"unpack the shards yourself into train/CLASS/*.JPEG and val/CLASS/*.JPEG{old}"
            )
        print(f"packing {len(files)} {split} shards into {folder}, once{old}", file=sys.stderr)
        with (empty / IMAGES).open("wb") as out:
            index = _pack(files, out)
            _sync(out)
        with (empty / INDEX).open("wb") as out:
            np.savez(out, **index)
            _sync(out)

    return atomic_dir(folder, fill, damage=_damage)


def _older(folder: Path, files: Sequence[Path]) -> list[Path]:
    """Folders packed from earlier versions of these shards."""
    split = folder.name.partition("-")[0]
    beside = [path for path in folder.parent.glob(f"{split}-*") if os.access(path / INDEX, os.R_OK)]
    names = [str(file.absolute()) for file in files]
    return sorted(path for path in beside if not _damage(path) and _index(path)["shards"].tolist() == names)


def _damage(folder: Path) -> str:
    """What is wrong with a folder of `pack_shards`, "" for nothing."""
    try:
        index, size = _index(folder), (folder / IMAGES).stat().st_size
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError:  # of the disk or the network
        raise
    except Exception:  # a torn index raises EOFError, BadZipFile, ValueError and more
        return f"{INDEX} cannot be read"
    expected = int(index["starts"][-1])
    return "" if size == expected else f"{IMAGES} has {size:,} of {expected:,} bytes"


def _index(folder: Path) -> dict[str, Any]:
    with (folder / INDEX).open("rb") as file, np.load(file) as index:
        names = ("labels", "starts", "firsts", "shards")
        return {name: index[name] for name in (*names, *(["sums"] if "sums" in index else []))}


def _sync(file: BinaryIO) -> None:
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


ROWS_PER_BATCH = 256
NUMBERED = re.compile(r"(?P<start>.*?)-(?P<number>\d+)-of-(?P<of>\d+)")  # train-00003-of-00294.parquet


def shards(folder: Path, split: str) -> list[Path]:
    """The parquet files of a split, in the folder or in data/."""
    listed = (sorted(where.glob(f"{split}-*.parquet")) for where in (folder, folder / "data"))
    return next((files for files in listed if files), [])


def all_shards(folder: Path, split: str) -> list[Path]:
    """`shards`, after checking that none is missing or there twice."""
    files = shards(folder, split)
    if not files:
        raise DataMissing(f"{folder} has no shards {split}-*.parquet; put them beside the others")
    numbered = [match for file in files if (match := NUMBERED.match(file.name))]
    for start in {match["start"] for match in numbered}:
        _check_numbers([match for match in numbered if match["start"] == start], files[0].parent)
    return files


def _check_numbers(matches: Sequence[re.Match[str]], where: Path) -> None:
    start, of = matches[0].group("start", "of")
    if other := next((match for match in matches if match["of"] != of), None):
        raise DataMissing(
            f"{where} has shards of two exports, {matches[0].string} and {other.string}; keep those of one"
        )
    times = Counter(int(match["number"]) for match in matches)
    first = 1 if int(of) in times else 0  # most count from 0
    for number in range(first, first + int(of)):
        if times[number] == 0:
            name = f"{start}-{number:0{len(of)}}-of-{of}.parquet"
            raise DataMissing(f"{where} has {len(matches)} of {int(of)} {start} shards; fetch {name}")
        if times[number] > 1:
            names = [match.string for match in matches if int(match["number"]) == number]
            raise DataMissing(f"{where} has the same shard twice, {' and '.join(names)}; keep one of them")


def rows(file: Path) -> Iterator[tuple[bytes | None, int | None]]:
    """Image and label of each row of a shard."""
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
            for batch in shard.iter_batches(ROWS_PER_BATCH, columns=["image", "label"]):
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
