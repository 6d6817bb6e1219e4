"""Random resized crops of images in files to learn from, center crops to evaluate on.

What is random is a function of seed, epoch and the image's number alone, whichever process crops.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from nap.lab.datasets.image_files import Box, EncodedImages, decode_crop
from nap.lab.datasets.streams import generator

CROPS = 16  # a purpose of random numbers, beside those of datasets.streams; never renumber it
RATIO = 4 / 3  # largest aspect ratio, either way
TRIES = 10  # until a crop fits into the image


@dataclass(frozen=True)
class ResizedCrops:
    """How images are cropped.

    `min_area` is the smallest area of a random crop, as a fraction of the image. For evaluation the shorter
    side of an image is resized to `resize`, and the center `size` is cropped.
    """

    seed: int
    size: int
    resize: int
    min_area: float
    flip: bool

    def sample(self, images: EncodedImages, number: int, epoch: int) -> NDArray[np.uint8]:
        """A random resized crop of an image, perhaps flipped, (size, size, 3)."""
        rng = generator(self.seed, CROPS, task=number, epoch=epoch)
        flipped = rng.random() < 0.5 and self.flip
        crop = decode_crop(images, number, partial(random_box, rng=rng, min_area=self.min_area), self.size)
        return crop[:, ::-1] if flipped else crop

    def center(self, images: EncodedImages, number: int) -> NDArray[np.uint8]:
        """The center crop of an image, (size, size, 3)."""
        return decode_crop(images, number, partial(center_box, share=self.size / self.resize), self.size)


def random_box(width: int, height: int, *, rng: np.random.Generator, min_area: float) -> Box:
    """A box of random area, aspect ratio and position.

    The area is uniform from `min_area` to 1, the logarithm of width over height is uniform, and so are the
    positions where such a box fits. If none fits in ten tries, it is the center, as far as the ratio allows.

    >>> random_box(400, 300, rng=np.random.default_rng(0), min_area=0.08)
    (27, 15, 382, 295)
    """
    for share, shape, x, y in rng.random((TRIES, 4)).tolist():
        area = width * height * (min_area + (1 - min_area) * share)
        ratio = exp((2 * shape - 1) * log(RATIO))
        wide, high = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(x * (width - wide + 1)), int(y * (height - high + 1))
            return left, top, left + wide, top + high
    wide, high = min(width, round(height * RATIO)), min(height, round(width * RATIO))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def center_box(width: int, height: int, *, share: float) -> Box:
    """The centered square whose side is this share of the shorter one.

    >>> center_box(400, 300, share=0.5)
    (125.0, 75.0, 275.0, 225.0)
    """
    side = share * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
