"""Images in class folders: train/CLASS/*.JPEG and val/CLASS/*.JPEG, as ImageNet is unpacked by custom."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from nap.lab.datasets.store import DataMissing

ENDINGS = (".bmp", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
NOT_READ = (".avif", ".gif", ".heic", ".heif", ".jp2", ".jxl")  # not by every Pillow, or they move
FLAT = (
    "its images lie in one folder, without their classes: move each into a folder of its class, named as in "
    "train (for ImageNet, ILSVRC2012_validation_ground_truth.txt and meta.mat of the development kit say "
    "which; the script valprep.sh does it)"
)


class FolderPictures:
    """The images of one split; classes count in the order of their folders' names.

    Names are kept in one array of bytes, since worker processes get a copy each.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.class_names = _class_names(folder)
        self.classes = len(self.class_names)
        names = [_images(folder / name) for name in self.class_names]
        self._names = np.array([os.fsencode(name) for of in names for name in of])
        self.labels = np.repeat(np.arange(self.classes), [len(of) for of in names]).astype(np.int64)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, number: int) -> Path:
        """The image's file."""
        name = os.fsdecode(bytes(self._names[number]))
        return self._folder / self.class_names[self.labels[number]] / name

    def encoded(self, number: int) -> bytes:
        return self.path(number).read_bytes()

    def name(self, number: int) -> str:
        return str(self.path(number))

    @property
    def mending(self) -> str:
        return "put a good copy in its place, or take it out and begin anew with --force"

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256("\n".join(self.class_names).encode("utf-8", "surrogateescape"))
        digest.update(self._names.tobytes())
        digest.update(self.labels.tobytes())
        return digest.hexdigest()


def in_folders(folder: Path) -> tuple[FolderPictures, FolderPictures]:
    """The images of train/ and of val/, which must have the same classes."""
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise DataMissing(f"there is no folder {folder / part}; images lie in {part}/CLASS/*.JPEG")
    train, val = FolderPictures(folder / "train"), FolderPictures(folder / "val")
    if train.class_names != val.class_names:
        odd = sorted(set(train.class_names) ^ set(val.class_names))
        where = "train" if odd[0] in train.class_names else "val"
        raise DataMissing(
            f"{folder}: train has {train.classes} class folders and val {val.classes}, and {odd[0]} is in "
            f"{where} alone; both must have the same ones"
        )
    return train, val


def _class_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        found = list(entries)
    classes = sorted(entry.name for entry in found if entry.is_dir())
    loose = sum(entry.name.lower().endswith(ENDINGS) for entry in found)
    if loose:
        raise DataMissing(f"{folder} holds {loose:,} loose images: {FLAT}")
    if not classes:
        raise DataMissing(f"{folder} has no class folders; images lie in {folder.name}/CLASS/*.JPEG")
    return classes


def _images(folder: Path) -> list[str]:
    found = sorted(os.listdir(folder))
    names = [name for name in found if name.lower().endswith(ENDINGS)]
    if other := next((name for name in found if name.lower().endswith(NOT_READ)), None):
        raise DataMissing(
            f"{folder / other} is of a kind that is not read ({', '.join(NOT_READ)}); "
            "write it as PNG, or take it out"
        )
    if not names:
        raise DataMissing(
            f"the class folder {folder} has no image ({', '.join(ENDINGS)}); fill it, or remove it"
        )
    return names
