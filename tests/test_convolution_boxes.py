"""Convolutions of stacked networks by boxes that a GPU fetches: against PyTorch in float64."""

from __future__ import annotations

import pytest
import torch

from test_convolution import DEVICE, by_hand, given
from test_convolution_kernels import CUDA, last

boxes = pytest.importorskip("nap.lab.training.convolution_boxes", reason="needs Triton")
FETCHES = CUDA and boxes._available(DEVICE)
LAYERS = [(32, 64, 64), (16, 64, 128), (16, 128, 128), (8, 128, 256), (8, 256, 256), (4, 256, 512)]


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boxes, "_available", lambda device: True)


@pytest.mark.skipif(CUDA, reason="in float32, by the interpreter; what a GPU does is below")
@pytest.mark.parametrize(
    ("size", "columns", "parts"),
    [
        ((2, 2, 8, 8, 16, 32, 3), 64, 1),  # a box is a whole image
        ((2, 2, 8, 8, 16, 32, 3), 16, 3),  # two rows of one
        ((2, 4, 4, 4, 64, 32, 3), 32, 3),  # two images
        ((2, 2, 16, 16, 128, 16, 3), 16, 1),  # sums over more channels than are fetched at a time
        ((1, 2, 8, 4, 16, 32, 5), 16, 5),  # oblong, with kernels that reach further
        ((1, 2, 8, 8, 32, 16, 1), 16, 1),
    ],
    ids=str,
)
def test_each_way_is_pytorchs(size: tuple[int, ...], columns: int, parts: int) -> None:
    x, w, dy = given(size, torch.float32)
    tiles = boxes.Boxes(16, columns, parts=parts)
    sums = boxes.Boxes(16, 16, parts=2 if size[2] * size[3] >= 64 else 1)
    found = (
        boxes.convolved(last(x), last(w), tiles),
        boxes.image_gradient(last(dy), last(w), tiles),
        boxes.kernel_gradient(last(dy), last(x), size[-1], sums),
    )
    for one, expected in zip(found, by_hand(x, w, dy), strict=True):
        assert (one.double() - last(expected)).norm() / expected.norm() < 1e-6


def test_channels_that_are_no_whole_boxes_are_refused() -> None:
    x, w, dy = (last(part) for part in given((1, 2, 8, 8, 96, 64, 3), torch.float32))
    with pytest.raises(AssertionError):
        boxes.convolved(x, w, boxes.Boxes(64, 128))
    with pytest.raises(AssertionError):
        boxes.kernel_gradient(dy, x, 3, boxes.Boxes(64, 64))


@pytest.mark.skipif(CUDA, reason="in float32, by the interpreter")
def test_convolutions_that_fit_go_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from nap.lab.training import convolution_kernels

    def refuse(*given: object, **options: object) -> None:
        raise AssertionError("not by boxes")

    monkeypatch.setattr(boxes, "_fits", lambda x: True)
    monkeypatch.setattr(convolution_kernels, "_correlated", refuse)
    monkeypatch.setattr(convolution_kernels, "gradient_tiles", refuse)
    x, w, dy = given((2, 2, 8, 8, 128, 128, 3), torch.float32)
    found = (
        convolution_kernels.convolved(last(x), last(w)),
        convolution_kernels.image_gradient(last(dy), last(w)),
        convolution_kernels.kernel_gradient(last(dy), last(x), 3),
    )
    for one, expected in zip(found, by_hand(x, w, dy), strict=True):
        assert (one.double() - last(expected)).norm() / expected.norm() < 1e-6


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_what_is_chosen_covers_a_layer_in_whole_tiles(layer: tuple[int, int, int], members: int) -> None:
    size, channels, outputs = layer
    x = torch.empty(members, 32, size, size, channels, dtype=torch.bfloat16, device="meta")
    count = 32 * size * size
    if tiles := boxes.product_boxes(x, 3, outputs):
        assert outputs % tiles.rows == count % tiles.columns == 0
        assert 9 * channels // 64 % tiles.parts == 0
    assert (tiles is None) == (outputs == 64)  # no faster then
    tiles = boxes.gradient_boxes(x, 3, outputs)
    assert outputs % tiles.rows == channels % tiles.columns == 0
    assert count // 64 % tiles.parts == 0


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((3, 32, 8, 8, 64), torch.float32),
        ((3, 32, 8, 8, 3), torch.bfloat16),
        ((3, 32, 12, 12, 64), torch.bfloat16),
        ((3, 3, 4, 4, 64), torch.bfloat16),
    ],
    ids=["float32", "three channels", "12 × 12", "three small images"],
)
def test_what_does_not_fit_is_left_to_the_others(shape: tuple[int, ...], kind: torch.dtype) -> None:
    x = torch.empty(shape, dtype=kind, device="meta")
    assert boxes.product_boxes(x, 3, 128) is None
    assert boxes.gradient_boxes(x, 3, 128) is None


@pytest.mark.skipif(not FETCHES, reason="needs a GPU that fetches boxes")
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_on_a_gpu_in_bfloat16(layer: tuple[int, int, int], members: int) -> None:
    size, channels, outputs = layer
    x, w, dy = given((members, 32, size, size, channels, outputs, 3), torch.bfloat16)
    expected = by_hand(x, w, dy)
    ways = (
        (boxes.product_boxes(last(x), 3, outputs), lambda t: boxes.convolved(last(x), last(w), t)),
        (boxes.product_boxes(last(dy), 3, channels), lambda t: boxes.image_gradient(last(dy), last(w), t)),
        (boxes.gradient_boxes(last(x), 3, outputs), lambda t: boxes.kernel_gradient(last(dy), last(x), 3, t)),
    )
    for (tiles, way), right in zip(ways, expected, strict=True):
        if tiles:
            assert (way(tiles).double() - last(right)).norm() / right.norm() < 1e-2
