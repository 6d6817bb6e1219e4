"""Images that stay in their files until they are looked at: what such a set is, and a look at one image."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from math import ceil
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nap.lab.datasets.store import DataMissing

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


class BrokenImage(ValueError):
    """An image cannot be decoded; says which, and why."""


class Pictures(Protocol):
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
    def mending(self) -> str:
        """What to do about an image that cannot be read, for a person."""

    @property
    def fingerprint(self) -> str:
        """The same for the same images in the same order, wherever they lie."""


def seen(pictures: Pictures, number: int, box_of: Callable[[int, int], Box], size: int) -> NDArray[np.uint8]:
    """What lies in a box of an image, scaled to (size, size, 3): levels of red, green and blue.

    `box_of` is given the image's width and height. Scaling down averages, and a JPEG is decoded at a half,
    a quarter or an eighth of its size where that is still finer than what is asked for.
    """
    pillow = imaging()
    with _named(pictures, number):
        image = pillow.open(io.BytesIO(pictures.encoded(number)))
        if image.mode.startswith(("I", "F")):  # Pillow would cut their levels off at 255
            raise ValueError(f"its levels have more than 8 bits, {image.mode} in Pillow: write it with 8")
        width, height = image.size
    left, top, right, bottom = box_of(width, height)
    with _named(pictures, number):
        image.draft("RGB", (ceil(width * size / (right - left)), ceil(height * size / (bottom - top))))
        image = image.convert("RGB")
        x, y = image.width / width, image.height / height
        box = (left * x, top * y, min(right * x, image.width), min(bottom * y, image.height))
        return np.asarray(image.resize((size, size), pillow.Resampling.BILINEAR, box=box))


def imaging() -> Any:
    """Pillow's module of images."""
    try:
        return import_module("PIL.Image")
    except ImportError as error:
        raise DataMissing(
            "images in files are decoded with Pillow, which is not installed: "
            "pip install 'normalize-and-project[imagenet]'"
        ) from error


@contextmanager
def _named(pictures: Pictures, number: int) -> Iterator[None]:
    """Errors inside are about this image."""
    try:
        yield
    except Exception as error:  # decoders raise OSError, SyntaxError, struct.error and more
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BrokenImage(
            f"{pictures.name(number)} cannot be read as an image ({reason}); {pictures.mending}"
        ) from error
