"""Small images in files, for tests of what reads them: class folders, and shards of parquet."""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = ("cat", "dog", "owl")
COUNTS = {"train": 10, "val": 4}  # images of each class


def picture(label: int, number: int, kind: str, *, width: int = 24, height: int = 18) -> bytes:
    """An image whose colour tells its class, with noise that tells its number."""
    generator = np.random.default_rng([label, number])
    levels = generator.integers(0, 80, (height, width, 3))
    levels[:, :, label] += 150
    out = io.BytesIO()
    Image.fromarray(levels.astype(np.uint8)).save(out, kind)
    return out.getvalue()


def write_folders(folder: Path) -> Path:
    """train/CLASS/* and val/CLASS/*, half of them JPEG and half PNG."""
    for part, count in COUNTS.items():
        for label, name in enumerate(CLASSES):
            where = folder / part / name
            where.mkdir(parents=True)
            for number in range(count):
                kind = ("JPEG", "PNG")[number % 2]
                number += 100 * (part == "val")
                (where / f"{number:03}.{kind}").write_bytes(picture(label, number, kind))
            (where / "notes.txt").write_text("no image")
    return folder


def shard_rows(seed: int, count: int) -> list[dict[str, Any]]:
    """Rows of a shard, as the hub has them."""
    return [
        {"image": {"bytes": picture(n % 3, 1000 * seed + n, "JPEG"), "path": f"{n}.JPEG"}, "label": n % 3}
        for n in range(count)
    ]


def write_shards(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Two shards to learn from and one to be judged on, in folder/data; the rows of each."""
    pa, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

    (folder / "data").mkdir(parents=True)
    rows = {
        "train-00000-of-00002": shard_rows(1, 7),
        "train-00001-of-00002": shard_rows(2, 5),
        "validation-00000-of-00001": shard_rows(3, 4),
    }
    for name, of in rows.items():
        parquet.write_table(pa.Table.from_pylist(of), folder / "data" / f"{name}.parquet", row_group_size=3)
    return rows
