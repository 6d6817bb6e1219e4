"""Norms over channels and space as what they are: a factor and a shift for each sample and channel.

LayerNorm's statistics of a sample and BatchNorm's of a channel both follow from the mean and variance of
each (sample, channel). So one pass over an image gives all of them, and one more applies all of them: no
more memory traffic than BatchNorm alone, and no change of memory layout, which `group_norm` needs for
channels-last images. `Norm` uses `layer_norm` of these; `of_channels` and `batch_norm` are for a BatchNorm
that follows (`nap.norms.fused_batchnorm`).
"""

from __future__ import annotations

import torch
from torch import Tensor

# Factor and shift, (N, C) each: y = factor · x + shift. Of several networks they may be stacked, (…, N, C),
# with parameters and statistics of each channel (…, C).
Affine = tuple[Tensor, Tensor]


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each sample's channels, (N, C) each, of images (N, C, …)."""
    space = tuple(range(2, x.ndim))
    if not space:
        return x, torch.zeros_like(x)
    variance, mean = torch.var_mean(x, space, correction=0)
    return mean, variance


def layer_norm(mean: Tensor, variance: Tensor, *, centre: bool = True, eps: float | Tensor = 1e-5) -> Affine:
    """LayerNorm of each sample over channels and space, or RMSNorm."""
    center = mean.mean(-1, keepdim=True) if centre else torch.zeros_like(mean[..., :1])
    total_variance = (variance + (mean - center).square()).mean(-1, keepdim=True)
    factor = (total_variance + eps).rsqrt().expand_as(mean)
    return factor, -center * factor


def scaled(before: Affine, scale: Tensor | None, offset: Tensor | None) -> Affine:
    """`before`, then a scale and an offset for each channel."""
    factor, shift = before
    if scale is not None:
        factor, shift = factor * scale.unsqueeze(-2), shift * scale.unsqueeze(-2)
    return factor, shift if offset is None else shift + offset.unsqueeze(-2)


def of_channels(before: Affine, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel over all samples, (C,) each, after `before`."""
    factor, shift = before
    means = factor * mean + shift
    channel_mean = means.mean(-2)
    return channel_mean, (factor.square() * variance + (means - channel_mean.unsqueeze(-2)).square()).mean(-2)


def batch_norm(
    before: Affine,
    channel_mean: Tensor,
    channel_variance: Tensor,
    scale: Tensor | None,
    offset: Tensor | None,
    eps: float,
) -> Affine:
    """`before`, then BatchNorm with these statistics of each channel."""
    factor, shift = before
    inverse = (channel_variance + eps).rsqrt().unsqueeze(-2)
    return scaled((factor * inverse, (shift - channel_mean.unsqueeze(-2)) * inverse), scale, offset)


def apply(x: Tensor, affine: Affine) -> Tensor:
    """factor · x + shift, over all positions."""
    factor, shift = (part.view(*part.shape, *(1,) * (x.ndim - 2)) for part in affine)
    return x * factor + shift
