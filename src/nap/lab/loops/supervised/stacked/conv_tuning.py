"""Into which pieces the products of a convolution of K networks are cut: from shapes alone.

A program makes one tile of a product. Large tiles read each number less often; but where there are too few of
them for the chip's processors, tiles are smaller, or sums are cut into parts that are added up afterwards.
The numbers are those with which an H200 was quickest (`benchmarks/convolutions.py --search`).
"""

from __future__ import annotations

from typing import NamedTuple

PROCESSORS = 132  # of an H100 or H200; on other chips the choice of tiles is a guess
_FEWEST = 8  # steps of a sum's part: with fewer, what begins and ends it weighs too much


class Tiles(NamedTuple):
    """What one program makes: `rows` × `columns` of a product, `depth` numbers of its sums at a time."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3
    parts: int = 1  # that sums are cut into, of a convolution or the gradient of its images


def product_tiles(count: int, outputs: int, depth: int, members: int) -> Tiles:
    """For a convolution, or the gradient of its images, of so many positions and sums so deep.

    On an H200 one large tile for 7 processors in 10 did as well as twice as many of half the size.

    >>> product_tiles(count=32 * 16 * 16, outputs=128, depth=9 * 128, members=3)
    Tiles(rows=128, columns=128, depth=64, warps=8, stages=3, parts=1)
    """
    deep = 64 if depth >= 64 else 32
    large, medium, small = Tiles(128, 128, deep, 8), Tiles(128, 64, deep), Tiles(64, 64, deep, 4, 4)

    def number(tiles: Tiles) -> int:
        return _over(count, tiles.rows) * _over(outputs, tiles.columns) * members

    if outputs >= large.columns:
        parts = min(_over(PROCESSORS, number(large)), depth // (_FEWEST * deep))
        if number(large) >= 0.7 * PROCESSORS:
            return large
        if parts > 1 and parts * number(large) >= 0.7 * PROCESSORS:
            return large._replace(parts=parts)
    return medium if number(medium) >= 0.9 * PROCESSORS else small


def gradient_tiles(outputs: int, width_of_sum: int) -> Tiles:
    """Of a kernel's gradient; parts of the sum over positions make up for it where these are few."""
    rows = 128 if outputs >= 128 else 64
    columns = 128 if width_of_sum >= 128 else 32
    return Tiles(rows, columns, 64, 8 if rows * columns >= 128 * 128 else 4)


def part_length(count: int, tiles: int, depth: int) -> int:
    """Into parts of how many positions a sum is cut, so that there is a program for every processor."""
    parts = 1 if tiles >= 0.7 * PROCESSORS else round(1.5 * PROCESSORS / tiles)
    return _over(_over(count, parts), depth) * depth


def _over(count: int, size: int) -> int:
    return -(-count // size)
