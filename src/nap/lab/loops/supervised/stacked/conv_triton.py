"""Convolutions of K networks at once, each with its own kernel, as one matrix product a launch (Triton).

A convolution of images (N, H, W, C) by a kernel (O, side, side, C) is a product over side²·C numbers j: tap
j // C of the kernel and channel j % C. Column j of the left factor is that channel of all images, moved by
that tap, with zeros beyond the edges; it is never written down, a program reads just its part. The gradient
of the images is the same with the taps in reverse, that of the kernel a product over all positions.

cuDNN has no form for many networks but groups, which are slow, and for one network and small batches it takes
small tiles, whose reads wait for the cache. K networks fill the chip with large ones.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nap.lab.loops.supervised.stacked.conv_tuning import Tiles, gradient_tiles, part_length, product_tiles


@triton.jit
def _shifts(j, side: tl.constexpr, channels: tl.constexpr):
    """For numbers j of the sum: tap, its shift down and to the right, and the channel."""
    tap = j // channels
    return tap, tap // side - side // 2, tap % side - side // 2, j % channels


@triton.jit
def _seen(
    x, m, j, count,
    height: tl.constexpr, width: tl.constexpr, side: tl.constexpr, channels: tl.constexpr,
):  # fmt: skip
    """Columns j of the left factor at the positions m: (m, j)."""
    _, down, right, channel = _shifts(j, side, channels)
    row, column = (m // width % height)[:, None] + down[None, :], (m % width)[:, None] + right[None, :]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    inside &= (m < count)[:, None] & (j < side * side * channels)[None, :]
    at = (m[:, None] + (down * width + right)[None, :]) * channels + channel[None, :]
    return tl.load(x + at, mask=inside, other=0.0)


# Loops go to a bound that is known when they are compiled: else products wait for each other (ptxas, sm_90).


@triton.jit
def _correlate(
    x, w, y, count, x_member, w_member, y_member, y_part, w_tap, w_in, w_out,
    height: tl.constexpr, width: tl.constexpr, side: tl.constexpr, channels: tl.constexpr,
    outputs: tl.constexpr, LENGTH: tl.constexpr, REVERSED: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    part, member = tl.program_id(1), tl.program_id(2).to(tl.int64)
    across = tl.cdiv(outputs, COLUMNS)
    m = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    x, w, y = x + member * x_member, w + member * w_member, y + member * y_member + part * y_part
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, LENGTH, DEPTH):
        j = part * LENGTH + start + tl.arange(0, DEPTH)
        left = _seen(x, m, j, count, height, width, side, channels)
        tap, _, _, channel = _shifts(j, side, channels)
        if REVERSED:
            tap = side * side - 1 - tap
        inside = (j < side * side * channels)[:, None] & (n < outputs)[None, :]
        at = (tap * w_tap + channel * w_in)[:, None] + (n * w_out)[None, :]
        right = tl.load(w + at, mask=inside, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    at = m[:, None] * outputs + n[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=(m < count)[:, None] & (n < outputs)[None, :])


@triton.jit
def _weigh(
    x, dy, parts, count, x_member, dy_member, part_stride, part_member,
    height: tl.constexpr, width: tl.constexpr, side: tl.constexpr, channels: tl.constexpr,
    outputs: tl.constexpr, LENGTH: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    part, member = tl.program_id(1), tl.program_id(2).to(tl.int64)
    across = tl.cdiv(side * side * channels, COLUMNS)
    o = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    x, dy = x + member * x_member, dy + member * dy_member
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, LENGTH, DEPTH):
        m = part * LENGTH + start + tl.arange(0, DEPTH)
        mask = (m < count)[:, None] & (o < outputs)[None, :]
        left = tl.load(dy + m[:, None] * outputs + o[None, :], mask=mask, other=0.0)
        right = _seen(x, m, j, count, height, width, side, channels)
        total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION)
    at = o[:, None] * (side * side * channels) + j[None, :]
    mask = (o < outputs)[:, None] & (j < side * side * channels)[None, :]
    there = parts + part * part_stride + member * part_member + at
    tl.store(there, total.to(parts.dtype.element_ty), mask=mask)


@triton.jit
def _add_up(parts, whole, size, COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.arange(0, ROWS).to(tl.int64)[:, None]
    mask = (part < COUNT) & (at < size)[None, :]
    each = tl.load(parts + part * size + at[None, :], mask=mask, other=0.0)
    tl.store(whole + at, tl.sum(each, 0).to(whole.dtype.element_ty), mask=at < size)


def convolved(x: Tensor, w: Tensor, *, tiles: Tiles | None = None) -> Tensor:
    """Images (K, N, H, W, C) by kernels (K, O, side, side, C): (K, N, H, W, O). All lie in memory so."""
    return _correlated(x, w, outputs=1, inputs=4, reverse=False, tiles=tiles)


def image_gradient(dy: Tensor, w: Tensor, *, tiles: Tiles | None = None) -> Tensor:
    """The gradient of the images, (K, N, H, W, C), from that of the output, (K, N, H, W, O)."""
    return _correlated(dy, w, outputs=4, inputs=1, reverse=True, tiles=tiles)


def _correlated(
    x: Tensor, w: Tensor, *, outputs: int, inputs: int, reverse: bool, tiles: Tiles | None
) -> Tensor:
    """`outputs` and `inputs` are axes of the kernels."""
    members, images, height, width, channels = x.shape
    assert x.is_contiguous()
    assert w.is_contiguous()
    assert channels == w.shape[inputs]
    made, side, count = w.shape[outputs], w.shape[2], images * height * width
    depth = side * side * channels
    t = tiles or product_tiles(count, made, depth, members)
    length = triton.cdiv(triton.cdiv(depth, t.parts), t.depth) * t.depth
    parts = triton.cdiv(depth, length)
    y = _partial_sums(x, parts, (*x.shape[:4], made))
    grid = (triton.cdiv(count, t.rows) * triton.cdiv(made, t.columns), parts, members)
    _correlate[grid](
        x, w, y, count, x.stride(0), w.stride(0), y.stride(1), y.stride(0),
        w.stride(3), w.stride(inputs), w.stride(outputs),
        height, width, side, channels, made, length, reverse, _precision(),
        t.rows, t.columns, t.depth, num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return _summed(y, x.dtype)


def kernel_gradient(dy: Tensor, x: Tensor, side: int, *, tiles: Tiles | None = None) -> Tensor:
    """The gradient of the kernels, (K, O, side, side, C), with sums in a fixed order."""
    members, images, height, width, channels = x.shape
    assert x.is_contiguous()
    assert dy.is_contiguous()
    made, count, width_of_sum = dy.shape[4], images * height * width, side * side * channels
    t = tiles or gradient_tiles(made, width_of_sum)
    across = triton.cdiv(made, t.rows) * triton.cdiv(width_of_sum, t.columns)
    length = part_length(count, across * members, t.depth)
    parts = triton.cdiv(count, length)
    partial = _partial_sums(x, parts, (members, made, side, side, channels))
    member = made * width_of_sum
    _weigh[(across, parts, members)](
        x, dy, partial, count, x.stride(0), dy.stride(0), members * member, member,
        height, width, side, channels, made, length, _precision(), t.rows, t.columns, t.depth,
        num_warps=t.warps, num_stages=t.stages,
    )  # fmt: skip
    return _summed(partial, x.dtype)


def _summed(parts: Tensor, dtype: torch.dtype) -> Tensor:
    if len(parts) == 1:
        return parts[0].to(dtype)
    whole = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    rows = triton.next_power_of_2(len(parts))
    columns = max(32, 4096 // rows)
    grid = (triton.cdiv(whole.numel(), columns),)
    _add_up[grid](parts, whole, whole.numel(), len(parts), rows, columns)
    return whole


def _partial_sums(like: Tensor, parts: int, shape: tuple[int, ...]) -> Tensor:
    """Memory for the parts of a sum of this shape: in float32, unless there is only one."""
    return like.new_empty((parts, *shape), dtype=like.dtype if parts == 1 else torch.float32)


def _precision() -> str:
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
