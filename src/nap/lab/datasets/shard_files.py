"""Shards of parquet with labelled images: which files there are, whether all are there, and their rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from nap.lab.datasets.store import DataMissing

AT_ONCE = 256  # rows read from a shard together
NUMBERED = re.compile(r"(?P<start>.*?)-(?P<number>\d+)-of-(?P<of>\d+)")  # train-00003-of-00294.parquet


def shards(folder: Path, split: str) -> list[Path]:
    """The parquet files of a split, here or in data/."""
    found = (sorted(where.glob(f"{split}-*.parquet")) for where in (folder, folder / "data"))
    return next((files for files in found if files), [])


def all_shards(folder: Path, split: str) -> list[Path]:
    """The same; there must be some, and where their names say of how many, each of those once."""
    files = shards(folder, split)
    if not files:
        raise DataMissing(f"{folder} has no shards {split}-*.parquet; put them beside the others")
    numbered = [match for file in files if (match := NUMBERED.match(file.name))]
    for start in {match["start"] for match in numbered}:
        _check_numbers([match for match in numbered if match["start"] == start], files[0].parent)
    return files


def _check_numbers(found: Sequence[re.Match[str]], where: Path) -> None:
    start, of = found[0].group("start", "of")
    if other := next((match for match in found if match["of"] != of), None):
        raise DataMissing(
            f"{where} has shards of two exports, {found[0].string} and {other.string}; keep those of one"
        )
    times = Counter(int(match["number"]) for match in found)
    first = 1 if int(of) in times else 0  # most count from 0
    for number in range(first, first + int(of)):
        if times[number] == 0:
            name = f"{start}-{number:0{len(of)}}-of-{of}.parquet"
            raise DataMissing(f"{where} has {len(found)} of {int(of)} {start} shards; fetch {name}")
        if times[number] > 1:
            names = [match.string for match in found if int(match["number"]) == number]
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
