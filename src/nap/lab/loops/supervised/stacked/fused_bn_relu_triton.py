"""The four passes of `fused_bn_relu` over the images of all networks, (K, N, H, W, C) in memory (Triton).

A program has some channels of one image: where it makes a sum, all positions of it, else some. With pooling
it goes over the positions that come out, each a window of 2 × 2 that go in.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUMBERS = 4096  # of a tile


@triton.jit
def _small(row, c, C: tl.constexpr):
    """Coefficients of these channels, (1, c)."""
    return tl.load(row + c, mask=c < C, other=0.0)[None, :]


@triton.jit
def _value(x, at, mask, a, b):
    """Images at these places, as they are and after factor and shift."""
    entered = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    return entered, entered * a + b


@triton.jit
def _largest(x, at, mask, a, b, WIDTH: tl.constexpr, C: tl.constexpr):
    """The largest value of each window that begins at `at`, what entered there, and which of four it is."""
    entered, most = _value(x, at, mask, a, b)
    which = tl.zeros(most.shape, tl.int32)
    for k in tl.static_range(1, 4):
        other, value = _value(x, at + (k // 2 * WIDTH + k % 2) * C, mask, a, b)
        larger = value > most
        entered, most = tl.where(larger, other, entered), tl.where(larger, value, most)
        which = tl.where(larger, k, which)
    return entered, most, which


@triton.jit
def _entering(p, WIDTH: tl.constexpr, POOL: tl.constexpr):
    """Where position p of what comes out begins in what goes in."""
    if POOL:
        half = WIDTH // 2
        return p // half * (2 * WIDTH) + p % half * 2
    return p


@triton.jit
def _tile(
    factor, shift,
    P: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, POOL: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Of a program that has some positions: its image, where they come out and go in, and coefficients."""
    blocks = tl.cdiv(P, BP)
    n, c = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(1) * BC + tl.arange(0, BC)
    p = tl.program_id(0) % blocks * BP + tl.arange(0, BP)
    mask = (p < P)[:, None] & (c < C)[None, :]
    out, at = p[:, None] * C + c[None, :], _entering(p, WIDTH, POOL)[:, None] * C + c[None, :]
    return n, c, mask, out, at, _small(factor + n * C, c, C), _small(shift + n * C, c, C)


@triton.jit
def _both(one, other, more, again):
    return one + more, other + again


@triton.jit
def _moments(
    x, sums_out, size,
    P: tl.constexpr, C: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Of numbers less one from the middle of the image: edges differ most, since zeros lie beyond them.

    The variance is off by (that number − mean)²/variance roundings, at most P of them.
    """
    n, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BC + tl.arange(0, BC)
    x += n * (P * C)
    some = tl.load(x + (P // 2) * C + c, mask=c < C, other=0.0).to(tl.float32)
    ones, squares = tl.zeros([BP, BC], tl.float32), tl.zeros([BP, BC], tl.float32)
    for start in tl.range(0, P, BP, loop_unroll_factor=AT_ONCE):
        p = start + tl.arange(0, BP)
        mask = (p < P)[:, None] & (c < C)[None, :]
        value = tl.load(x + p[:, None] * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
        apart = tl.where(mask, value - some[None, :], 0.0)
        ones += apart
        squares += apart * apart
    one, square = tl.reduce((ones, squares), 0, _both)
    mean = one / P
    variance = square / P - mean * mean
    tl.store(sums_out + n * C + c, mean + some, mask=c < C)
    tl.store(sums_out + size + n * C + c, tl.where(variance < 0, 0.0, variance), mask=c < C)


@triton.jit
def _apply(
    x, y, factor, shift,
    P: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, POOL: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n, _, mask, out, at, a, b = _tile(factor, shift, P, WIDTH, C, POOL, BP, BC)
    x += n * (P * C * (4 if POOL else 1))
    if POOL:
        _, value, _ = _largest(x, at, mask, a, b, WIDTH, C)
    else:
        _, value = _value(x, at, mask, a, b)
    value = tl.where(value < 0, 0.0, value)  # what is not a number stays so
    tl.store(y + n * (P * C) + out, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _sum(
    dy, x, factor, shift, sums_out, size,
    P: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, POOL: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    n, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BC + tl.arange(0, BC)
    a, b = _small(factor + n * C, c, C), _small(shift + n * C, c, C)
    x += n * (P * C * (4 if POOL else 1))
    dy += n * (P * C)
    ones, products = tl.zeros([BP, BC], tl.float32), tl.zeros([BP, BC], tl.float32)
    for start in tl.range(0, P, BP, loop_unroll_factor=AT_ONCE):
        p = start + tl.arange(0, BP)
        mask = (p < P)[:, None] & (c < C)[None, :]
        at = _entering(p, WIDTH, POOL)[:, None] * C + c[None, :]
        if POOL:
            entered, value, _ = _largest(x, at, mask, a, b, WIDTH, C)
        else:
            entered, value = _value(x, at, mask, a, b)
        g = tl.load(dy + p[:, None] * C + c[None, :], mask=mask, other=0.0).to(tl.float32)
        g = tl.where(value > 0, g, 0.0)
        ones += g
        products += g * entered
    one, product = tl.reduce((ones, products), 0, _both)
    tl.store(sums_out + n * C + c, one, mask=c < C)
    tl.store(sums_out + size + n * C + c, product, mask=c < C)


@triton.jit
def _descend(
    dy, x, dx, factor, shift, level, slope,
    P: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, POOL: tl.constexpr,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n, c, mask, out, at, a, b = _tile(factor, shift, P, WIDTH, C, POOL, BP, BC)
    u, v = _small(level + n * C, c, C), _small(slope + n * C, c, C)
    x += n * (P * C * (4 if POOL else 1))
    dx += n * (P * C * (4 if POOL else 1))
    g = tl.load(dy + n * (P * C) + out, mask=mask, other=0.0).to(tl.float32)
    if POOL:
        _, most, which = _largest(x, at, mask, a, b, WIDTH, C)
        g = a * tl.where(most > 0, g, 0.0)
        for k in tl.static_range(4):
            there = at + (k // 2 * WIDTH + k % 2) * C
            entered = tl.load(x + there, mask=mask, other=0.0).to(tl.float32)
            gradient = tl.where(which == k, g, 0.0) + u + v * entered
            tl.store(dx + there, gradient.to(dx.dtype.element_ty), mask=mask)
    else:
        entered, value = _value(x, at, mask, a, b)
        gradient = a * tl.where(value > 0, g, 0.0) + u + v * entered
        tl.store(dx + at, gradient.to(dx.dtype.element_ty), mask=mask)


def moments(x: Tensor) -> Tensor:
    """Mean and variance of each image's channels, (2, K, N, C), in float32."""
    sums_out, (images, positions, channels) = _new_sums(x), _sizes(x)
    *tile, warps = _summing(positions, channels)
    grid = (images, triton.cdiv(channels, tile[1]))
    _moments[grid](x, sums_out, images * channels, positions, channels, *tile, num_warps=warps)
    return sums_out


def applied(x: Tensor, factor: Tensor, shift: Tensor, pool: bool) -> Tensor:
    """ReLU of factor · x + shift; of each window the largest, if `pool`."""
    members, images, height, width, channels = x.shape
    y = x.new_empty(members, images, height // 2, width // 2, channels) if pool else torch.empty_like(x)
    _map(_apply, y, (x, y, factor, shift), width, pool)
    return y


def sums(dy: Tensor, x: Tensor, factor: Tensor, shift: Tensor, pool: bool) -> Tensor:
    """Σ g and Σ g · x, (2, K, N, C), of the gradient g that reaches factor · x + shift."""
    sums_out, (images, positions, channels) = _new_sums(x), _sizes(dy)
    _check(dy, x, factor, shift)
    *tile, warps = _summing(positions, channels)
    grid = (images, triton.cdiv(channels, tile[1]))
    _sum[grid](
        dy, x, factor, shift, sums_out, images * channels, positions, x.shape[3], channels, pool, *tile,
        num_warps=warps,
    )  # fmt: skip
    return sums_out


def gradient(
    dy: Tensor, x: Tensor, factor: Tensor, shift: Tensor, level: Tensor, slope: Tensor, pool: bool
) -> Tensor:
    """factor · g + level + slope · x."""
    dx = torch.empty_like(x)
    _map(_descend, dy, (dy, x, dx, factor, shift, level, slope), x.shape[3], pool)
    return dx


def _map(kernel: triton.JITFunction, out: Tensor, tensors: Sequence[Tensor], width: int, pool: bool) -> None:
    _check(*tensors)
    images, positions, channels = _sizes(out)
    bc = min(triton.next_power_of_2(channels), max(64, _NUMBERS // triton.next_power_of_2(positions)))
    bp = min(triton.next_power_of_2(positions), max(1, _NUMBERS // (4 if pool else 1) // bc))
    grid = (images * triton.cdiv(positions, bp), triton.cdiv(channels, bc))
    kernel[grid](*tensors, positions, width, channels, pool, bp, bc)


def _summing(positions: int, channels: int) -> tuple[int, int, int, int]:
    """Positions and channels of a tile that is summed, how many of them are read at once, and warps.

    Best on an H200, alone and beside others: 16 numbers a thread, in few threads, whose sums must be added.
    """
    warps = 1 if positions < 256 else 4 if positions < 1024 else 8
    bc = min(triton.next_power_of_2(channels), 64 if positions <= 16 else 32)
    bp = min(triton.next_power_of_2(positions), 512 * warps // bc)
    return bp, bc, min(4, triton.cdiv(positions, bp)), warps


def _sizes(x: Tensor) -> tuple[int, int, int]:
    members, images, height, width, channels = x.shape
    return members * images, height * width, channels


def _new_sums(x: Tensor) -> Tensor:
    _check(x)
    return torch.empty(2, *x.shape[:2], x.shape[4], dtype=torch.float32, device=x.device)


def _check(*tensors: Tensor) -> None:
    assert all(tensor.is_contiguous() for tensor in tensors)
