"""Into which pieces the products of a convolution of K networks are cut: from shapes alone.

A program makes one tile of a product. Large tiles read each number less often; but where there are too few of
them for the chip's processors, tiles are smaller, or sums are cut into parts that are added up afterwards.
The numbers are those with which an H200 was quickest (`benchmarks/convolutions.py --search`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

PROCESSORS = 132  # of an H100 or H200; on other chips the choice of tiles is a guess
DEPTH = 64  # numbers of a sum that are fetched at a time: 128 bytes of bfloat16, which is what TMA takes best
_ENOUGH = 92  # large tiles: 7 processors in 10 have one
_FEWEST = 8  # steps of a sum's part: with fewer, what begins and ends it weighs too much
_ADDING_UP = 20  # steps that could be made in the time that it takes to add parts up, and one for each


class Tiles(NamedTuple):
    """What one program makes: `rows` × `columns` of a product, `depth` numbers of its sums at a time."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3
    parts: int = 1  # that sums are cut into, of a convolution or the gradient of its images


class Boxes(NamedTuple):
    """The same of boxes, `rows` being outputs and `columns` positions, or channels in a gradient."""

    rows: int
    columns: int
    warps: int = 8
    stages: int = 4
    parts: int = 1  # that sums are cut into


def product_tiles(count: int, outputs: int, depth: int, members: int) -> Tiles:
    """For a convolution, or the gradient of its images, of so many positions and sums so deep.

    On an H200 one large tile for 7 processors in 10 did as well as twice as many of half the size.

    >>> product_tiles(count=32 * 16 * 16, outputs=128, depth=9 * 128, members=3)
    Tiles(rows=128, columns=128, depth=64, warps=8, stages=3, parts=1)
    """
    deep = 64 if depth >= 64 else 32
    large, middle, small = Tiles(128, 128, deep, 8), Tiles(128, 64, deep), Tiles(64, 64, deep, 4, 4)

    def number(tiles: Tiles) -> int:
        return _over(count, tiles.rows) * _over(outputs, tiles.columns) * members

    if outputs >= large.columns:
        parts = min(_over(PROCESSORS, number(large)), depth // (_FEWEST * deep))
        if number(large) >= 0.7 * PROCESSORS:
            return large
        if parts > 1 and parts * number(large) >= 0.7 * PROCESSORS:
            return large._replace(parts=parts)
    return middle if number(middle) >= 0.9 * PROCESSORS else small


def gradient_tiles(outputs: int, width_of_sum: int) -> Tiles:
    """Of a kernel's gradient; parts of the sum over positions make up for it where these are few."""
    rows = 128 if outputs >= 128 else 64
    columns = 128 if width_of_sum >= 128 else 32
    return Tiles(rows, columns, 64, 8 if rows * columns >= 128 * 128 else 4)


def part_length(count: int, tiles: int, depth: int) -> int:
    """Into parts of how many positions a sum is cut, so that there is a program for every processor."""
    parts = 1 if tiles >= 0.7 * PROCESSORS else round(1.5 * PROCESSORS / tiles)
    return _over(_over(count, parts), depth) * depth


def product_boxes(shape: Sequence[int], side: int, outputs: int) -> Boxes | None:
    """For a convolution of images (K, N, H, W, C), or the gradient of such; None where boxes do not fit.

    None, too, where they are no faster. As an H200 has it best, alone and beside others.

    >>> product_boxes((3, 32, 16, 16, 128), side=3, outputs=128)
    Boxes(rows=128, columns=128, warps=8, stages=3, parts=1)
    """
    members, images, height, width, channels = shape
    if channels % DEPTH or outputs % 128 or not box_of(images, height, width, 128):
        return None
    number = outputs // 128 * (images * height * width // 128) * members
    if number >= _ENOUGH:
        return Boxes(128, 128, stages=_stages(number))
    parts = _parts(2 * number, side * side * channels // DEPTH)
    deep = 6 if parts * 2 * number <= PROCESSORS else 4  # where there is room for no other beside it
    return Boxes(64, 128, warps=4, stages=deep, parts=parts)


def gradient_boxes(shape: Sequence[int], side: int, outputs: int) -> Boxes | None:
    """For the gradient of a kernel, of images (K, N, H, W, C)."""
    members, images, height, width, channels = shape
    if channels % DEPTH or outputs % 64 or not box_of(images, height, width, DEPTH):
        return None
    large = channels % 128 == outputs % 128 == 0
    number = side * side * channels * outputs * members // 128**2
    if large and number >= _ENOUGH:
        return Boxes(128, 128, stages=_stages(number))
    columns = 64 if channels % 128 else 128
    number = side * side * channels * outputs * members // (64 * columns)
    return Boxes(64, columns, warps=4, parts=_parts(number, images * height * width // DEPTH))


def box_of(images: int, height: int, width: int, positions: int) -> tuple[int, int] | None:
    """Images and rows of a box of so many positions, where whole boxes make up all images.

    >>> box_of(32, 16, 16, 128), box_of(32, 4, 4, 128), box_of(32, 12, 12, 128)
    ((1, 8), (8, 4), None)
    """
    rows = max(1, positions // width)
    box = (1, rows) if rows <= height else (rows // height, height)
    whole = box[0] * box[1] * width == positions and images % box[0] == height % box[1] == 0
    return box if whole and not any(side & (side - 1) for side in (width, *box)) else None


def _stages(number: int) -> int:
    """How far ahead to fetch: three stages let two large tiles share a processor, a single one takes four."""
    return 3 if number > PROCESSORS else 4


@cache
def _parts(number: int, steps: int) -> int:
    """Into how many parts to cut sums of so many steps, of which there are `number` to be made."""

    def cost(parts: int) -> float:
        adding_up = _ADDING_UP + parts if parts > 1 else 0
        return steps / parts * max(1.0, parts * number / PROCESSORS) + adding_up

    return min((parts for parts in range(1, steps + 1) if steps % parts == 0), key=cost)


def _over(count: int, size: int) -> int:
    return -(-count // size)
