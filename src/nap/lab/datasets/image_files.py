"""Images that stay encoded in their files: class folders, as ImageNet is unpacked; and decoding a crop."""

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
    """An image cannot be decoded; says which, and why."""


class EncodedImages(Protocol):
    """Labelled images in their files, numbered from 0. Worker processes get copies."""

    labels: NDArray[np.int64]
    classes: int

    def __len__(self) -> int:
        """How many images there are."""

    def encoded(self, number: int) -> bytes:
        """An image as its file has it: JPEG, PNG and so on."""

    def name(self, number: int) -> str:
        """Where that image lies, for a person."""

    @property
    def advice(self) -> str:
        """What to do about an image that cannot be read, for a person."""

    @property
    def fingerprint(self) -> str:
        """The same for the same images in the same order, wherever they lie."""


def decode_crop(
    images: EncodedImages, number: int, box_of: Callable[[int, int], Box], size: int
) -> NDArray[np.uint8]:
    """The crop in a box of an image, scaled to (size, size, 3): levels of red, green and blue.

    `box_of` is given the image's width and height. Scaling down averages, and a JPEG is decoded at a half,
    a quarter or an eighth of its size where that is still finer than what is asked for.
    """
    pillow = pillow_image()
    with _named(images, number):
        image = pillow.open(io.BytesIO(images.encoded(number)))
        if image.mode.startswith(("I", "F")):  # Pillow would cut their levels off at 255
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
    """Pillow's module of images."""
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise DataMissing(
            "images in files are decoded with Pillow, which is not installed: "
            "pip install 'normalize-and-project[imagenet]'"
        ) from error


@contextmanager
def _named(images: EncodedImages, number: int) -> Iterator[None]:
    """Errors inside are about this image."""
    try:
        yield
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error and more
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BrokenImage(
            f"{images.name(number)} cannot be read as an image ({reason}); {images.advice}"
        ) from error


ENDINGS = (".bmp", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
NOT_READ = (".avif", ".gif", ".heic", ".heif", ".jp2", ".jxl")  # not by every Pillow, or they move
FLAT = (
    "its images lie in one folder, without their classes: move each into a folder of its class, named as in "
    "train (for ImageNet, ILSVRC2012_validation_ground_truth.txt and meta.mat of the development kit say "
    "which; the script valprep.sh does it)"
)


class ImageFolder:
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
    def advice(self) -> str:
        return "put a good copy in its place, or take it out and begin anew with --force"

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256("\n".join(self.class_names).encode("utf-8", "surrogateescape"))
        digest.update(self._names.tobytes())
        digest.update(self.labels.tobytes())
        return digest.hexdigest()


def load_image_folders(folder: Path) -> tuple[ImageFolder, ImageFolder]:
    """The images of train/ and of val/, which must have the same classes."""
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
