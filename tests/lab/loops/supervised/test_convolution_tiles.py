"""How products of stacked networks are cut: in whole pieces, and enough of them for a large GPU."""

from __future__ import annotations

import pytest

from convolution_cases import LAYERS
from nap.lab.loops.supervised.stacked.conv_tuning import (
    DEPTH,
    gradient_boxes,
    part_length,
    product_boxes,
    product_tiles,
)


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


@pytest.mark.parametrize("members", [1, 3, 4])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_boxes_cover_a_layer_in_whole_tiles(layer: tuple[int, int, int], members: int) -> None:
    size, channels, outputs = layer
    shape, count = (members, 32, size, size, channels), 32 * size * size
    if tiles := product_boxes(shape, 3, outputs):
        assert outputs % tiles.rows == count % tiles.columns == 0
        assert 9 * channels // DEPTH % tiles.parts == 0
    assert (tiles is None) == (outputs == 64)  # no faster then
    tiles = gradient_boxes(shape, 3, outputs)
    assert tiles is not None
    assert outputs % tiles.rows == channels % tiles.columns == 0
    assert count // DEPTH % tiles.parts == 0


@pytest.mark.parametrize(
    "shape",
    [(3, 32, 8, 8, 3), (3, 32, 12, 12, 64), (3, 3, 4, 4, 64)],
    ids=["three channels", "12 × 12", "three small images"],
)
def test_what_does_not_fit_in_boxes_is_left_to_the_others(shape: tuple[int, ...]) -> None:
    assert product_boxes(shape, 3, 128) is None
    assert gradient_boxes(shape, 3, 128) is None


def test_more_networks_fill_the_chip_with_larger_tiles() -> None:
    sums = [product_boxes((members, 32, 4, 4, 512), 3, 512) for members in (1, 3, 8)]
    assert [boxes and (boxes.rows, boxes.parts > 1) for boxes in sums] == [
        (64, True),
        (64, False),
        (128, False),
    ]
