"""The kernels of `bn_affine` (Triton): a program has all samples of some channels of one network.

Statistics of a norm in front are of each sample: forward a launch of its channel computes them,
backward each program leaves the sums of its channels and a second launch adds them up.
"""

from __future__ import annotations

from typing import TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

_NUMBERS = 512  # of a tile, about: 16 for each thread of a warp, which has all sums to itself
T = TypeVar("T", Tensor, Tensor | None)


@triton.jit
def _samples(moments, units, size, EPS, C: tl.constexpr, CENTRE: tl.constexpr, BC: tl.constexpr):
    """Mean and inverse deviation of each sample."""
    row, c = tl.program_id(0), tl.arange(0, BC)
    mean = tl.load(moments + row * C + c, mask=c < C, other=0.0)
    variance = tl.load(moments + size + row * C + c, mask=c < C, other=0.0)
    mu = tl.sum(mean, 0) / C if CENTRE else 0.0
    centred = tl.where(c < C, mean - mu, 0.0)
    tl.store(units + 2 * row, mu)
    tl.store(units + 2 * row + 1, tl.rsqrt(tl.sum(variance + centred * centred, 0) / C + EPS))


@triton.jit
def _tile(
    moments, units, before, size,
    N: tl.constexpr, C: tl.constexpr, FRONT: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Places and statistics of this program's numbers; beyond all samples they are 0."""
    member, c, n = tl.program_id(1), tl.program_id(0) * BC + tl.arange(0, BC), tl.arange(0, BN)
    row = member * N + n
    mask = (n < N)[:, None] & (c < C)[None, :]
    at = row[:, None] * C + c[None, :]
    mean = tl.load(moments + at, mask=mask, other=0.0)
    variance = tl.load(moments + size + at, mask=mask, other=0.0)
    factor, shift = tl.where(mask, 1.0, 0.0), tl.zeros([BN, BC], tl.float32)
    mu, unit, scale = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32), tl.zeros([BC], tl.float32)
    if FRONT:
        mu = tl.load(units + 2 * row, mask=n < N, other=0.0)
        unit = tl.load(units + 2 * row + 1, mask=n < N, other=0.0)
        scale = tl.load(before + member * C + c, mask=c < C, other=0.0)
        factor = unit[:, None] * scale[None, :]
        shift = -mu[:, None] * factor
    return member * C + c, c < C, row, n < N, at, mask, mean, variance, factor, shift, mu, unit, scale


@triton.jit
def _of_channels(mean, variance, factor, shift, mask, N: tl.constexpr):
    """Mean of each channel after the norm in front, numbers less that mean, and the variance."""
    value = factor * mean + shift
    mu = tl.sum(value, 0) / N
    centred = tl.where(mask, value - mu[None, :], 0.0)
    return mu, centred, tl.sum(factor * factor * variance + centred * centred, 0) / N


@triton.jit
def _forward(
    moments, units, before, scale, offset, factors, shifts, mus, variances, size, EPS, COUNT,
    N: tl.constexpr, C: tl.constexpr, FRONT: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    channel, inside, _, _, at, mask, mean, variance, factor, shift, _, _, _ = _tile(
        moments, units, before, size, N, C, FRONT, BN, BC
    )
    mu, _, var = _of_channels(mean, variance, factor, shift, mask, N)
    times = tl.rsqrt(var + EPS) * tl.load(scale + channel, mask=inside, other=0.0)
    level = tl.load(offset + channel, mask=inside, other=0.0)
    tl.store(factors + at, factor * times[None, :], mask=mask)
    tl.store(shifts + at, (shift - mu[None, :]) * times[None, :] + level[None, :], mask=mask)
    tl.store(mus + channel, mu, mask=inside)
    tl.store(variances + channel, var * (N * COUNT / (N * COUNT - 1.0)), mask=inside)


@triton.jit
def _backward(
    sums, moments, units, before, scale, levels, slopes, d_before, d_scale, d_offset, of_channels, parts,
    size, small, rows, EPS, COUNT,
    N: tl.constexpr, C: tl.constexpr, FRONT: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    channel, inside, row, there, at, mask, mean, variance, factor, shift, front, unit, front_scale = _tile(
        moments, units, before, size, N, C, FRONT, BN, BC
    )
    mu, centred, var = _of_channels(mean, variance, factor, shift, mask, N)
    d_shift = tl.load(sums + at, mask=mask, other=0.0)
    d_factor = tl.load(sums + size + at, mask=mask, other=0.0)
    inverse, gain = tl.rsqrt(var + EPS), tl.load(scale + channel, mask=inside, other=0.0)
    times = inverse * gain
    level = tl.sum(d_shift, 0)
    d_times = tl.sum(d_factor * factor + d_shift * (shift - mu[None, :]), 0)
    d_var = -0.5 * d_times * gain * inverse * inverse * inverse
    d_value = (2 * d_var[None, :] * centred - (times * level)[None, :]) / N
    tl.store(d_scale + channel, d_times * inverse, mask=inside)
    tl.store(d_offset + channel, level, mask=inside)
    if FRONT:
        d_factor = d_factor * times[None, :] + d_value * mean
        d_factor += 2 * d_var[None, :] * factor * variance / N
        d_shift = tl.where(mask, d_shift * times[None, :] + d_value, 0.0)
        d_factor = tl.where(mask, d_factor - front[:, None] * d_shift, 0.0)
        tl.store(d_before + channel, tl.sum(d_factor * unit[:, None], 0), mask=inside)
        sums_at = parts + tl.program_id(0) * 2 * rows + row
        tl.store(sums_at, tl.sum(d_shift * factor, 1), mask=there)
        tl.store(sums_at + rows, tl.sum(d_factor * front_scale[None, :], 1), mask=there)
        tl.store(of_channels + channel, mu, mask=inside)
        tl.store(of_channels + small + channel, d_var, mask=inside)
        tl.store(of_channels + 2 * small + channel, times * level, mask=inside)
    else:
        tl.store(d_before + channel, tl.zeros([BC], tl.float32), mask=inside)
        slope = (2 * d_var / (N * COUNT))[None, :]
        tl.store(slopes + at, tl.where(mask, slope, 0.0), mask=mask)
        tl.store(levels + at, d_value / COUNT - slope * mean, mask=mask)


@triton.jit
def _through_front(
    moments, units, before, of_channels, parts, levels, slopes, size, small, rows, COUNT,
    N: tl.constexpr, C: tl.constexpr, CENTRE: tl.constexpr, PARTS: tl.constexpr,
    BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    channel, inside, row, there, at, mask, mean, _, factor, shift, front, unit, _ = _tile(
        moments, units, before, size, N, C, True, BN, BC
    )
    mu = tl.load(of_channels + channel, mask=inside, other=0.0)
    d_var = tl.load(of_channels + small + channel, mask=inside, other=0.0)
    level = tl.load(of_channels + 2 * small + channel, mask=inside, other=0.0)
    centred = factor * mean + shift - mu[None, :]
    d_value = (2 * d_var[None, :] * centred - level[None, :]) / N
    d_front, d_unit = tl.zeros([BN], tl.float32), tl.zeros([BN], tl.float32)
    for part in range(PARTS):
        d_front += tl.load(parts + part * 2 * rows + row, mask=there, other=0.0)
        d_unit += tl.load(parts + part * 2 * rows + rows + row, mask=there, other=0.0)
    of_sample = -0.5 * d_unit * unit * unit * unit / C
    d_mean = d_value * factor + 2 * of_sample[:, None] * (mean - front[:, None])
    if CENTRE:
        d_mean -= d_front[:, None] / C
    slope = 2 * (d_var[None, :] * factor * factor / N + of_sample[:, None]) / COUNT
    tl.store(slopes + at, slope, mask=mask)
    tl.store(levels + at, d_mean / COUNT - slope * mean, mask=mask)


def bn_affine(
    moments: Tensor,
    before: Tensor | None,
    scale: Tensor,
    offset: Tensor,
    eps: float,
    eps_before: float,
    centre: bool,
    count: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Factor, shift, mean and variance of each channel; of each sample those of the norm in front."""
    before, scale, offset = _contiguous(before), _contiguous(scale), _contiguous(offset)
    members, samples, channels = _check(moments)
    factor, shift = (torch.empty_like(part) for part in moments)
    mu, var = (moments.new_empty(members, channels) for _ in range(2))
    units = moments.new_empty(members, samples, 0 if before is None else 2)
    if before is not None:
        wide = triton.next_power_of_2(channels)
        _samples[(members * samples,)](
            moments, units, factor.numel(), eps_before, channels, centre, wide, num_warps=1
        )
    bn, bc, grid = _tiles(members, samples, channels)
    _forward[grid](
        moments, units, before, scale, offset, factor, shift, mu, var, factor.numel(), eps, count,
        samples, channels, before is not None, bn, bc, num_warps=_warps(bn, bc),
    )  # fmt: skip
    return factor, shift, mu, var, units


def gradient(
    sums: Tensor,
    moments: Tensor,
    units: Tensor,
    before: Tensor | None,
    scale: Tensor,
    eps: float,
    centre: bool,
    count: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Level and slope; gradients of the scale in front, of scale and offset."""
    before, scale = _contiguous(before), _contiguous(scale)
    members, samples, channels = _check(moments, sums, units)
    bn, bc, grid = _tiles(members, samples, channels)
    rows, front = members * samples, before is not None
    level, slope = (torch.empty_like(part) for part in moments)
    small = moments.new_empty(3, members, channels)
    of_channels = moments.new_empty(3, members, channels) if front else None
    parts = moments.new_empty(grid[0], 2, rows) if front else None
    _backward[grid](
        sums, moments, units, before, scale, level, slope, *small, of_channels, parts,
        level.numel(), scale.numel(), rows, eps, count, samples, channels, front, bn, bc,
        num_warps=_warps(bn, bc),
    )  # fmt: skip
    if front:
        wide = min(2 * bc, triton.next_power_of_2(channels))  # fewer programs: each adds up all parts
        _through_front[(triton.cdiv(channels, wide), members)](
            moments, units, before, of_channels, parts, level, slope,
            level.numel(), scale.numel(), rows, count, samples, channels, centre, grid[0], bn, wide,
        )  # fmt: skip
    return level, slope, small


def _tiles(members: int, samples: int, channels: int) -> tuple[int, int, tuple[int, int]]:
    bn = triton.next_power_of_2(samples)
    bc = min(triton.next_power_of_2(channels), max(4, _NUMBERS // bn))
    return bn, bc, (triton.cdiv(channels, bc), members)


def _warps(bn: int, bc: int) -> int:
    return min(8, max(1, bn * bc // _NUMBERS))


def _contiguous(parameter: T) -> T:
    return parameter if parameter is None else parameter.contiguous()  # members of few channels have gaps


def _check(moments: Tensor, *tensors: Tensor) -> tuple[int, int, int]:
    assert all(part.is_contiguous() for part in (moments, *tensors))
    _, members, samples, channels = moments.shape
    return members, samples, channels
