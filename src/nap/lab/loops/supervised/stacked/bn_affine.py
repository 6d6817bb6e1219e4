"""Factor and shift of a BatchNorm from the moments of images, and the gradient back through them.

All tensors are small, (K, N, C): PyTorch's compiler makes two to four launches of it for each layer, with a
norm in front seven, each of which waits for the one before. `bn_affine_triton` takes one each way, or two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nap.kernels import statistics
from nap.lab.loops.supervised.stacked.checked_kernel import checked


@torch.library.custom_op("nap_lab::bn_affine", mutates_args=())
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
    """Factor and shift of a BatchNorm, channel statistics, and statistics of the norm in front.

    Factor and shift are (K, N, C). The channels' mean and unbiased variance, (K, C), are for the running
    averages. The last result has mean and inverse deviation of each sample, (K, N, 2), or is (K, N, 0).

    Args:
        moments: mean and variance of each sample and channel, (2, K, N, C), each over `count` numbers.
        before: the scale of a LayerNorm in front, or of an RMSNorm (`centre=False`).
    """

    def plain() -> tuple[Tensor, ...]:
        mean, variance = moments
        units = mean.new_empty(*mean.shape[:2], 0)
        if before is not None:
            factor, shift = statistics.layer_norm(mean, variance, centre=centre, eps=eps_before)
            units = torch.stack([-shift[..., 0] / factor[..., 0], factor[..., 0]], -1)
        affine = _front(units, mean, before)
        mu, var = statistics.of_channels(affine, mean, variance)
        coefficients = statistics.batch_norm(affine, mu, var, scale, offset, eps)
        numbers = mean.shape[1] * count
        return *coefficients, mu, var * numbers / (numbers - 1), units

    def quick() -> tuple[Tensor, ...]:
        return tuple(_kernels().bn_affine(moments, before, scale, offset, eps, eps_before, centre, count))

    # `count` changes nothing in which kernels are at work
    name = "coefficients" if centre else "coefficients without centre"
    return checked(name, plain, quick, _shapes(moments, scale, before))  # type: ignore[return-value]


@torch.library.custom_op("nap_lab::bn_affine_backward", mutates_args=())
def bn_affine_backward(
    sums: Tensor,
    moments: Tensor,
    units: Tensor,
    before: Tensor | None,
    scale: Tensor,
    eps: float,
    centre: bool,
    count: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of each number x of an image through the moments, as level + slope · x, (K, N, C) each.

    The third result has the gradients of the scale in front (0 without one), of scale and offset, (3, K, C).

    Args:
        sums: the gradients of shift and factor, (2, K, N, C).
        units: the last result of `bn_affine`.
    """

    def plain() -> tuple[Tensor, ...]:
        (d_shift, d_factor), (mean, variance), samples = sums, moments, moments.shape[-2]
        factor, shift = _front(units, mean, before)
        mu, var = statistics.of_channels((factor, shift), mean, variance)
        mu, inverse = mu[:, None], (var + eps).rsqrt()[:, None]
        times = inverse * scale[:, None]
        d_offset = d_shift.sum(-2)
        d_times = (d_factor * factor + d_shift * (shift - mu)).sum(-2)
        d_var = -0.5 * (d_times * scale)[:, None] * inverse**3
        centred = factor * mean + shift - mu  # after the norm in front
        d_value = (2 * d_var * centred - times * d_offset[:, None]) / samples
        d_mean, d_variance = d_value * factor, d_var * factor.square() / samples
        d_before = torch.zeros_like(d_times)
        if before is not None:
            d_factor = d_factor * times + 2 * d_var * factor * variance / samples + d_value * mean
            d_shift = d_shift * times + d_value
            from_mean, from_variance, d_before = _back_through_front(
                d_factor, d_shift, mean, units, before, centre
            )
            d_mean, d_variance = d_mean + from_mean, d_variance + from_variance
        slope = 2 * d_variance / count
        small = torch.stack([d_before, d_times * inverse[:, 0], d_offset])
        return d_mean / count - slope * mean, slope, small

    def quick() -> tuple[Tensor, ...]:
        return tuple(_kernels().gradient(sums, moments, units, before, scale, eps, centre, count))

    name = "gradient of coefficients" if centre else "gradient of coefficients without centre"
    return checked(name, plain, quick, _shapes(moments, scale, before))  # type: ignore[return-value]


def _shapes(moments: Tensor, scale: Tensor, before: Tensor | None) -> list[Tensor]:
    """What tells one use from another: with a norm in front other kernels are at work."""
    return [moments, scale] if before is None else [moments, scale, before]


def _front(units: Tensor, mean: Tensor, before: Tensor | None) -> statistics.Affine:
    if before is None:
        return torch.ones_like(mean), torch.zeros_like(mean)
    factor = units[..., 1:] * before[:, None]
    return factor, -units[..., :1] * factor


def _back_through_front(
    d_factor: Tensor, d_shift: Tensor, mean: Tensor, units: Tensor, before: Tensor, centre: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of mean, variance and scale, of those of the factor and shift of the norm in front."""
    mu, unit = units[..., :1], units[..., 1:]
    d_factor = d_factor - mu * d_shift
    d_var = -0.5 * (d_factor * before[:, None]).mean(-1, keepdim=True) * unit**3
    d_mean = 2 * d_var * (mean - mu)
    if centre:
        d_mean = d_mean - (d_shift * unit * before[:, None]).mean(-1, keepdim=True)
    return d_mean, d_var.expand_as(mean), (d_factor * unit).sum(-2)


def _kernels() -> Any:
    from nap.lab.loops.supervised.stacked import bn_affine_triton

    return bn_affine_triton


@bn_affine.register_fake
def _(moments: Tensor, before: Tensor | None, scale: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    one, small = torch.empty_like(moments[0]), torch.empty_like(moments[0, :, 0])
    units = moments.new_empty(*one.shape[:2], 0 if before is None else 2)
    return one, torch.empty_like(one), small, torch.empty_like(small), units


@bn_affine_backward.register_fake
def _(sums: Tensor, moments: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    one = torch.empty_like(moments[0])
    return one, torch.empty_like(one), moments.new_empty(3, one.shape[0], one.shape[2])
