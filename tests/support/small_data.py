"""Data sets of ten images, as files, archives and folders."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from nap.lab.datasets.dataset import File, ImageSet, Split

Contents = Mapping[str, bytes]


def as_file(name: str, content: bytes) -> File:
    return File(name, len(content), hashlib.sha256(content).hexdigest())


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


DRAWS = np.random.default_rng(0)
PIXELS = DRAWS.integers(256, size=(10, 3, 2, 4), dtype=np.uint8)
LABELS = DRAWS.integers(5, size=10, dtype=np.uint8)
RECORDS = np.concatenate([LABELS[:, None], PIXELS.reshape(10, -1)], axis=1)
BATCHES = {
    "one.bin": RECORDS[:4].tobytes(),
    "two.bin": RECORDS[4:8].tobytes(),
    "test.bin": RECORDS[8:].tobytes(),
}
GREY = {"images-idx": idx(PIXELS[:, 0]), "labels-idx": idx(LABELS)}

COLOUR_SET = ImageSet(
    name="colours",
    about="batches as CIFAR-10 has them",
    shape=(3, 2, 4),
    classes=5,
    layout="cifar",
    splits={
        "train": Split(8, (as_file("one.bin", BATCHES["one.bin"]), as_file("two.bin", BATCHES["two.bin"]))),
        "test": Split(2, (as_file("test.bin", BATCHES["test.bin"]),)),
    },
    licence="none",
    cite="nobody",
)
GREY_SET = replace(
    COLOUR_SET,
    name="greys",
    layout="idx",
    shape=(1, 2, 4),
    splits={"train": Split(10, tuple(as_file(name, content) for name, content in GREY.items()))},
)


def tar_of(
    contents: Contents, prefix: str = "somewhere/inside/", packing: Literal["gz", "xz"] = "gz"
) -> bytes:
    buffer = io.BytesIO()
    mode: Literal["w:gz", "w:xz"] = "w:gz" if packing == "gz" else "w:xz"
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(contents: Contents, prefix: str = "somewhere/inside/") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(prefix + name, content)
    return buffer.getvalue()


def write(folder: Path, contents: Contents) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def installed(folder: Path) -> dict[str, bytes]:
    """All files in the data set's folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
