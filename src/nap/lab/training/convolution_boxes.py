"""Convolutions of K networks whose images the chip itself fetches, box by box (Triton, Hopper).

The products are those of `convolution_kernels`, where a program works out the address of every number that it
reads, and whether that lies in the image. Here positions are taken as a box of a few images and rows. For
each tap of the kernel the box is moved, and one instruction fetches what it then covers, with zeros beyond
the edges (TMA); the program itself does little but the product. That asks for images whose sides are powers
of two, and for channels by the 64.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from nap.lab.training.convolution_parts import PROCESSORS, added_up, room

DEPTH = 64  # numbers of a sum that are fetched at a time: 128 bytes of bfloat16, which is what TMA takes best
_ENOUGH = 92  # large tiles: 7 processors in 10 have one
_ADDING_UP = 20  # steps that could be made in the time that it takes to add parts up, and one for each


class Boxes(NamedTuple):
    """What one program makes: `rows` outputs by `columns`, which are positions, or channels of a gradient."""

    rows: int
    columns: int
    warps: int = 8
    stages: int = 4
    parts: int = 1  # that sums are cut into


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


def convolved(x: Tensor, w: Tensor, tiles: Boxes) -> Tensor:
    """As `convolution_kernels.convolved`."""
    return _correlated(x, w, w.shape[1], False, tiles)


def image_gradient(dy: Tensor, w: Tensor, tiles: Boxes) -> Tensor:
    """As `convolution_kernels.image_gradient`."""
    return _correlated(dy, w, w.shape[4], True, tiles)


def _correlated(x: Tensor, w: Tensor, made: int, reverse: bool, tiles: Boxes) -> Tensor:
    members, images, height, width, channels = x.shape
    side, box = w.shape[2], _box(images, height, width, tiles.columns)
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
    """As `convolution_kernels.kernel_gradient`."""
    members, images, height, width, channels = x.shape
    made, count = dy.shape[4], images * height * width
    depth = min(DEPTH, count)
    box = _box(images, height, width, depth)
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


def _box(images: int, height: int, width: int, positions: int) -> tuple[int, int] | None:
    """Images and rows of a box of so many positions, where whole boxes make up all images."""
    rows = max(1, positions // width)
    box = (1, rows) if rows <= height else (rows // height, height)
    whole = box[0] * box[1] * width == positions and images % box[0] == height % box[1] == 0
    return box if whole and not any(side & (side - 1) for side in (width, *box)) else None


def product_boxes(x: Tensor, side: int, outputs: int) -> Boxes | None:
    """For a convolution, or the gradient of its images; None where boxes do not fit, or are no faster.

    As an H200 has it best, alone and beside others, in a search over the layers of the lab's networks.
    """
    members, images, height, width, channels = x.shape
    if not _fits(x) or outputs % 128 or not _box(images, height, width, 128):
        return None
    number = outputs // 128 * (images * height * width // 128) * members
    if number >= _ENOUGH:
        return Boxes(128, 128, stages=_stages(number))
    parts = _parts(2 * number, side * side * channels // DEPTH)
    deep = 6 if parts * 2 * number <= PROCESSORS else 4  # where there is room for no other beside it
    return Boxes(64, 128, warps=4, stages=deep, parts=parts)


def gradient_boxes(x: Tensor, side: int, outputs: int) -> Boxes | None:
    """For the gradient of a kernel."""
    members, images, height, width, channels = x.shape
    if not _fits(x) or outputs % 64 or not _box(images, height, width, DEPTH):
        return None
    large = channels % 128 == outputs % 128 == 0
    number = side * side * channels * outputs * members // 128**2
    if large and number >= _ENOUGH:
        return Boxes(128, 128, stages=_stages(number))
    columns = 64 if channels % 128 else 128
    number = side * side * channels * outputs * members // (64 * columns)
    return Boxes(64, columns, warps=4, parts=_parts(number, images * height * width // DEPTH))


def _stages(number: int) -> int:
    """Of so many large tiles: with three of them, two fit on a processor; one alone had better wait less."""
    return 3 if number > PROCESSORS else 4


def _fits(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16 and x.shape[4] % DEPTH == 0 and _available(x.device)


@cache
def _parts(number: int, steps: int) -> int:
    """Into how many parts to cut sums of so many steps, of which there are `number` to be made."""

    def cost(parts: int) -> float:
        adding_up = _ADDING_UP + parts if parts > 1 else 0
        return steps / parts * max(1.0, parts * number / PROCESSORS) + adding_up

    return min((parts for parts in range(1, steps + 1) if steps % parts == 0), key=cost)


@cache
def _available(device: torch.device) -> bool:
    """Whether the chip has what fetches boxes, and memory for several of them beside its processors."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] in (9, 10)
