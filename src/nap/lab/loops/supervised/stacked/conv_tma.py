"""Convolutions of K networks whose images the chip itself fetches, box by box (Triton, Hopper).

The products are those of `conv_triton`, where a program works out the address of every number that it
reads, and whether that lies in the image. Here positions are taken as a box of a few images and rows. For
each tap of the kernel the box is moved, and one instruction fetches what it then covers, with zeros beyond
the edges (TMA); the program itself does little but the product. That asks for images whose sides are powers
of two, and for channels by the 64.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from nap.lab.loops.supervised.stacked.conv_tuning import DEPTH, Boxes, box_of
from nap.lab.loops.supervised.stacked.split_k import added_up, room


@triton.jit
def _correlate(
    images, kernels, y, y_part,
    IMAGES: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, REVERSED: tl.constexpr, LENGTH: tl.constexpr,
    DEPTH: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    COLUMNS: tl.constexpr = BN * BH * WIDTH
    part, member = tl.program_id(1), tl.program_id(2)
    down: tl.constexpr = OUTPUTS // ROWS
    box, o = tl.program_id(0) // down, tl.program_id(0) % down * ROWS
    high: tl.constexpr = HEIGHT // BH
    image, top = member * IMAGES + box // high * BN, box % high * BH
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    blocks: tl.constexpr = CHANNELS // DEPTH
    for step in range(LENGTH):
        at = part * LENGTH + step
        tap, c = at // blocks, at % blocks * DEPTH
        seen = images.load([image, top + tap // SIDE - SIDE // 2, tap % SIDE - SIDE // 2, c])
        if REVERSED:
            kernel = kernels.load([member * CHANNELS + c, (SIDE * SIDE - 1 - tap) * OUTPUTS + o]).T
        else:
            kernel = kernels.load([member * OUTPUTS + o, tap * CHANNELS + c])
        total = tl.dot(kernel, seen.reshape(COLUMNS, DEPTH).T, total)
    p = ((image * HEIGHT + top) * WIDTH).to(tl.int64) + tl.arange(0, COLUMNS)
    there = y + part * y_part.to(tl.int64) + p[:, None] * OUTPUTS + (o + tl.arange(0, ROWS))[None, :]
    tl.store(there, total.T.to(y.dtype.element_ty))


@triton.jit
def _weigh(
    images, gradients, found, found_part,
    IMAGES: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, SIDE: tl.constexpr,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, LENGTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BN: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    part, member = tl.program_id(1), tl.program_id(2)
    blocks: tl.constexpr = CHANNELS // COLUMNS
    across: tl.constexpr = SIDE * SIDE * blocks
    o, column = tl.program_id(0) // across * ROWS, tl.program_id(0) % across
    tap, c = column // blocks, column % blocks * COLUMNS
    high: tl.constexpr = HEIGHT // BH
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(LENGTH):
        box = part * LENGTH + step
        image, top = member * IMAGES + box // high * BN, box % high * BH
        gradient = gradients.load([(image * HEIGHT + top) * WIDTH, o])
        seen = images.load([image, top + tap // SIDE - SIDE // 2, tap % SIDE - SIDE // 2, c])
        total = tl.dot(gradient.T, seen.reshape(BN * BH * WIDTH, COLUMNS), total)
    row = (member * OUTPUTS + o + tl.arange(0, ROWS)).to(tl.int64) * (SIDE * SIDE) + tap
    there = found + part * found_part.to(tl.int64)
    there += row[:, None] * CHANNELS + (c + tl.arange(0, COLUMNS))[None, :]
    tl.store(there, total.to(found.dtype.element_ty))


def fetches(x: Tensor) -> bool:
    """Whether the chip can fetch these images by itself."""
    return x.dtype == torch.bfloat16 and _available(x.device)


def convolved(x: Tensor, w: Tensor, tiles: Boxes) -> Tensor:
    """As `conv_triton.convolved`."""
    return _correlated(x, w, w.shape[1], False, tiles)


def image_gradient(dy: Tensor, w: Tensor, tiles: Boxes) -> Tensor:
    """As `conv_triton.image_gradient`."""
    return _correlated(dy, w, w.shape[4], True, tiles)


def _correlated(x: Tensor, w: Tensor, made: int, reverse: bool, tiles: Boxes) -> Tensor:
    members, images, height, width, channels = x.shape
    side, box = w.shape[2], box_of(images, height, width, tiles.columns)
    assert box is not None
    y = room(x, tiles.parts, (*x.shape[:4], made))
    depth, steps = min(DEPTH, channels), side * side * channels // min(DEPTH, channels)
    assert channels % depth == steps % tiles.parts == made % tiles.rows == 0
    grid = (made // tiles.rows * (images * height * width // tiles.columns), tiles.parts, members)
    _correlate[grid](
        _described(x.flatten(0, 1), [*box, width, depth]),
        _described(w.flatten(0, 1).flatten(1), [depth, tiles.rows] if reverse else [tiles.rows, depth]),
        y, y.stride(0), images, height, width, side, channels, made, reverse, steps // tiles.parts,
        depth, tiles.rows, *box, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return added_up(y, x.dtype)


def kernel_gradient(dy: Tensor, x: Tensor, side: int, tiles: Boxes) -> Tensor:
    """As `conv_triton.kernel_gradient`."""
    members, images, height, width, channels = x.shape
    made, count = dy.shape[4], images * height * width
    depth = min(DEPTH, count)
    box = box_of(images, height, width, depth)
    assert box is not None
    assert count % depth == count // depth % tiles.parts == made % tiles.rows == channels % tiles.columns == 0
    found = room(x, tiles.parts, (members, made, side, side, channels))
    grid = (made // tiles.rows * (side * side * channels // tiles.columns), tiles.parts, members)
    _weigh[grid](
        _described(x.flatten(0, 1), [*box, width, tiles.columns]),
        _described(dy.flatten(0, 3), [depth, tiles.rows]),
        found, found.stride(0), images, height, width, side, channels, made, count // depth // tiles.parts,
        tiles.rows, tiles.columns, *box, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return added_up(found, x.dtype)


def _described(stack: Tensor, block: list[int]) -> TensorDescriptor:
    assert stack.is_contiguous()
    return TensorDescriptor(stack, list(stack.shape), list(stack.stride()), block)


@cache
def _available(device: torch.device) -> bool:
    """Whether the chip has what fetches boxes, and memory for several of them beside its processors."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)
