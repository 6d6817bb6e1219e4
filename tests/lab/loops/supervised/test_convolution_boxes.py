"""Convolutions of stacked networks by boxes that a GPU fetches: against PyTorch in float64."""

from __future__ import annotations

import pytest
import torch

from convolution_cases import LAYERS, by_hand, given, last
from gpu import CUDA, DEVICE
from nap.lab.loops.supervised.stacked.conv_tuning import Boxes, gradient_boxes, product_boxes

pytestmark = pytest.mark.cuda
boxes = pytest.importorskip("nap.lab.loops.supervised.stacked.conv_tma", reason="needs Triton")
FETCHES = CUDA and boxes._available(DEVICE)


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
    tiles = Boxes(16, columns, parts=parts)
    sums = Boxes(16, 16, parts=2 if size[2] * size[3] >= 64 else 1)
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
        boxes.convolved(x, w, Boxes(64, 128))
    with pytest.raises(AssertionError):
        boxes.kernel_gradient(dy, x, 3, Boxes(64, 64))


@pytest.mark.skipif(CUDA, reason="in float32, by the interpreter")
def test_convolutions_that_fit_go_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from nap.lab.loops.supervised.stacked import conv_triton

    def refuse(*given: object, **options: object) -> None:
        raise AssertionError("not by boxes")

    monkeypatch.setattr(boxes, "fetches", lambda x: True)
    monkeypatch.setattr(conv_triton, "_correlated", refuse)
    monkeypatch.setattr(conv_triton, "gradient_tiles", refuse)
    x, w, dy = given((2, 2, 8, 8, 128, 128, 3), torch.float32)
    found = (
        conv_triton.convolved(last(x), last(w)),
        conv_triton.image_gradient(last(dy), last(w)),
        conv_triton.kernel_gradient(last(dy), last(x), 3),
    )
    for one, expected in zip(found, by_hand(x, w, dy), strict=True):
        assert (one.double() - last(expected)).norm() / expected.norm() < 1e-6


def test_only_bfloat16_is_fetched() -> None:
    assert boxes.fetches(torch.empty(1, dtype=torch.bfloat16))
    assert not boxes.fetches(torch.empty(1))


@pytest.mark.skipif(not FETCHES, reason="needs a GPU that fetches boxes")
@pytest.mark.parametrize("members", [1, 3, 4])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_on_a_gpu_in_bfloat16(layer: tuple[int, int, int], members: int) -> None:
    size, channels, outputs = layer
    x, w, dy = given((members, 32, size, size, channels, outputs, 3), torch.bfloat16)
    expected = by_hand(x, w, dy)
    ways = (
        (product_boxes(last(x).shape, 3, outputs), lambda t: boxes.convolved(last(x), last(w), t)),
        (product_boxes(last(dy).shape, 3, channels), lambda t: boxes.image_gradient(last(dy), last(w), t)),
        (gradient_boxes(last(x).shape, 3, outputs), lambda t: boxes.kernel_gradient(last(dy), last(x), 3, t)),
    )
    for (tiles, way), right in zip(ways, expected, strict=True):
        if tiles:
            assert (way(tiles).double() - last(right)).norm() / right.norm() < 1e-2
