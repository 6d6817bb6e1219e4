"""Encoded images in class folders, as of ImageNet, and decoding of crops."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nap.lab.datasets.store import DataMissing

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


class BrokenImage(ValueError):
    """An image cannot be decoded; the message says which, and why."""


class EncodedImages(Protocol):
    """Labelled images in files, by index. Worker processes get copies."""

    labels: NDArray[np.int64]
    classes: int

    def __len__(self) -> int: ...

    def encoded(self, number: int) -> bytes:
        """The content of an image file: JPEG, PNG and so on."""

    def name(self, number: int) -> str:
        """Where the image is, for messages."""

    @property
    def advice(self) -> str:
        """What to do about an unreadable image, for messages."""

    @property
    def fingerprint(self) -> str:
        """Equal for equal images in the same order, in any folder."""


def decode_crop(
    images: EncodedImages, number: int, box_of: Callable[[int, int], Box], size: int
) -> NDArray[np.uint8]:
    """A crop of an image, scaled to uint8 (size, size, 3).

    `box_of` takes the image's width and height. Downscaling averages; a JPEG is decoded at 1/2, 1/4 or 1/8
    of its size if that is still larger than the crop.
    """
    pillow = pillow_image()
    with _named(images, number):
        image = pillow.open(io.BytesIO(images.encoded(number)))
        if image.mode.startswith(("I", "F")):  # Pillow would clip them at 255
            raise ValueError(f"its levels have more than 8 bits, {image.mode} in Pillow: write it with 8")
        width, height = image.size
    left, top, right, bottom = box_of(width, height)
    with _named(images, number):
        image.draft("RGB", (ceil(width * size / (right - left)), ceil(height * size / (bottom - top))))
        image = image.convert("RGB")
        x, y = image.width / width, image.height / height
        box = (left * x, top * y, min(right * x, image.width), min(bottom * y, image.height))
        return np.asarray(image.resize((size, size), pillow.Resampling.BILINEAR, box=box))


def pillow_image() -> Any:
    """The module PIL.Image."""
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise DataMissing(
            "images in files are decoded with Pillow, which is not installed: "
            "pip install 'normalize-and-project[imagenet]'"
        ) from error


@contextmanager
def _named(images: EncodedImages, number: int) -> Iterator[None]:
    """Raise errors as `BrokenImage` with the image's name."""
    try:
        yield
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error and more
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BrokenImage(
            f"{images.name(number)} cannot be read as an image ({reason}); {images.advice}"
        ) from error


ENDINGS = (".bmp", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
NOT_READ = (".avif", ".gif", ".heic", ".heif", ".jp2", ".jxl")  # not by every Pillow, or animated
FLAT = (
    "its images lie in one folder, without their classes: move each into a folder of its class, named as in "
    "train (for ImageNet, ILSVRC2012_validation_ground_truth.txt and meta.mat of the development kit say "
    "which; the script valprep.sh does it)"
)


class ImageFolder:
    """The images of one split; classes are in the order of their folders' names.

    File names are in one array, since each worker process gets a copy.
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
    def advice(self) -> str:
        return "put a good copy in its place, or take it out and begin anew with --force"

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256("\n".join(self.class_names).encode("utf-8", "surrogateescape"))
        digest.update(self._names.tobytes())
        digest.update(self.labels.tobytes())
        return digest.hexdigest()


def load_image_folders(folder: Path) -> tuple[ImageFolder, ImageFolder]:
    """The images in train/ and val/, which must have the same classes."""
    for part in ("train", "val"):
        if not (folder / part).is_dir():
            raise DataMissing(f"there is no folder {folder / part}; images lie in {part}/CLASS/*.JPEG")
    train, val = ImageFolder(folder / "train"), ImageFolder(folder / "val")
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
        listed = list(entries)
    classes = sorted(entry.name for entry in listed if entry.is_dir())
    loose = sum(entry.name.lower().endswith(ENDINGS) for entry in listed)
    if loose:
        raise DataMissing(f"{folder} holds {loose:,} loose images: {FLAT}")
    if not classes:
        raise DataMissing(f"{folder} has no class folders; images lie in {folder.name}/CLASS/*.JPEG")
    return classes


def _images(folder: Path) -> list[str]:
    listed = sorted(os.listdir(folder))
    names = [name for name in listed if name.lower().endswith(ENDINGS)]
    if other := next((name for name in listed if name.lower().endswith(NOT_READ)), None):
        raise DataMissing(
            f"{folder / other} is of a kind that is not read ({', '.join(NOT_READ)}); "
            "write it as PNG, or take it out"
        )
    if not names:
        raise DataMissing(
            f"the class folder {folder} has no image ({', '.join(ENDINGS)}); fill it, or remove it"
        )
    return names
