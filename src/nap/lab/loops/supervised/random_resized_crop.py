"""Where in an image one looks: a random part of it to learn from, the middle of it to be judged on.

What is random is a function of seed, epoch and the image's number alone, whichever process looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from nap.lab.datasets.image_files import Box, EncodedImages, decode_crop
from nap.lab.datasets.streams import generator

LOOKS = 16  # a purpose beside those of data.streams; part of every result: never renumber it
RATIO = 4 / 3  # a part is so much longer than wide at most, or wider than long
TRIES = 10  # until a part fits into the image


@dataclass(frozen=True)
class ResizedCrops:
    """How images are looked at.

    `smallest` is the least share of an image's area that a random part has. To be judged, an image is
    scaled until its shorter side is `resize`, of which the middle `size` is seen.
    """

    seed: int
    size: int
    resize: int
    smallest: float
    flip: bool

    def drawn(self, pictures: EncodedImages, number: int, epoch: int) -> NDArray[np.uint8]:
        """A random part of an image, perhaps mirrored, (size, size, 3)."""
        draws = generator(self.seed, LOOKS, task=number, epoch=epoch)
        mirrored = draws.random() < 0.5 and self.flip
        found = decode_crop(
            pictures, number, partial(random_box, draws=draws, smallest=self.smallest), self.size
        )
        return found[:, ::-1] if mirrored else found

    def plain(self, pictures: EncodedImages, number: int) -> NDArray[np.uint8]:
        """The middle of an image, (size, size, 3)."""
        return decode_crop(pictures, number, partial(middle_box, share=self.size / self.resize), self.size)


def random_box(width: int, height: int, *, draws: np.random.Generator, smallest: float) -> Box:
    """A part of an image: its share of the area, its shape and its place are random.

    The share is uniform from `smallest` to 1, the logarithm of width over height is uniform, and so are the
    places where such a part fits. If none fits in ten tries, it is the middle, as much as the shape allows.

    >>> random_box(400, 300, draws=np.random.default_rng(0), smallest=0.08)
    (27, 15, 382, 295)
    """
    for share, shape, x, y in draws.random((TRIES, 4)).tolist():
        area = width * height * (smallest + (1 - smallest) * share)
        ratio = exp((2 * shape - 1) * log(RATIO))
        wide, high = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(x * (width - wide + 1)), int(y * (height - high + 1))
            return left, top, left + wide, top + high
    wide, high = min(width, round(height * RATIO)), min(height, round(width * RATIO))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def middle_box(width: int, height: int, *, share: float) -> Box:
    """The square in the middle whose side is this share of the shorter one.

    >>> middle_box(400, 300, share=0.5)
    (125.0, 75.0, 275.0, 225.0)
    """
    side = share * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
