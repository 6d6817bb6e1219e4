"""How products of stacked networks are cut: in whole pieces, and enough of them for a large GPU."""

from __future__ import annotations

import pytest

from nap.lab.loops.supervised.stacked.conv_tuning import part_length, product_tiles


@pytest.mark.parametrize("members", [1, 3, 4])
@pytest.mark.parametrize(("size", "channels"), [(32, 64), (16, 128), (8, 256), (4, 512)])
def test_the_lab_s_layers_fill_a_large_gpu(size: int, channels: int, members: int) -> None:
    """In tiles of which none is left over, or with sums cut into parts that are still worth a program."""
    tiles = product_tiles(32 * size * size, channels, 9 * channels, members)
    number = 32 * size * size // tiles.rows * (channels // tiles.columns) * members
    assert number * tiles.parts >= 90
    assert 9 * channels // tiles.parts >= 8 * tiles.depth


@pytest.mark.parametrize(("count", "tiles"), [(32768, 15), (512, 432), (100, 1), (1, 1)])
def test_parts_cover_all_positions_in_whole_steps(count: int, tiles: int) -> None:
    length = part_length(count, tiles, 64)
    assert length % 64 == 0
    assert -(-count // length) * length >= count
