"""BatchNorm, perhaps with a LayerNorm in front, then ReLU and perhaps a pooling, of stacked networks.

Those norms are a factor and a shift for each sample and channel (`nap.kernels.statistics`). So images are
read four times: forward for their moments and to apply factor and shift, backward for two sums and the
gradient. Each pass is an operation of our own, on a GPU by `fused_bn_relu_triton`; `bn_affine` computes what
lies between. The gradient of the whole is registered with the second pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nap.lab.loops.supervised.stacked.bn_affine import bn_affine, bn_affine_backward
from nap.lab.loops.supervised.stacked.checked_kernel import checked
from nap.lab.loops.supervised.stacked.layout import by_position, channels_last, like, one_stack


class FusedOutput(NamedTuple):
    """Images, and each channel's mean and variance for the running statistics."""

    images: Tensor
    mean: Tensor
    var: Tensor


def fused_bn_relu(
    x: Tensor,
    scale: Tensor,
    offset: Tensor,
    before: Tensor | None = None,
    *,
    eps: float = 1e-5,
    eps_before: float = 1e-5,
    centre: bool = True,
    pool: bool = False,
) -> FusedOutput:
    """BatchNorm with this scale and offset of images (N, C, H, W), in training, then ReLU.

    Args:
        before: the scale of a LayerNorm in front, over channels and space (`centre=False`: RMSNorm).
        pool: then the largest of each 2 × 2 positions; height and width must be even.

    >>> x, ones, zeros = torch.randn(4, 3, 8, 8), torch.ones(3), torch.zeros(3)
    >>> fused = fused_bn_relu(x, ones, zeros, pool=True)
    >>> plain = F.max_pool2d(F.batch_norm(x, None, None, ones, zeros, training=True).relu(), 2)
    >>> torch.allclose(fused.images, plain, atol=1e-5)
    True
    """
    parameters = [None if p is None else p[None] for p in (before, scale, offset)]
    with torch.no_grad():
        moments = _moments(x.detach()[None])
        count = x.shape[-2] * x.shape[-1]
        factor, shift, mean, var, units = bn_affine(moments, *parameters, eps, eps_before, centre, count)
    images: Tensor = _fused_bn_relu(x[None], factor, shift, moments, units, *parameters, eps, centre, pool)
    return FusedOutput(images.squeeze(0), mean.squeeze(0), var.squeeze(0))


@torch.library.custom_op("nap_lab::moments", mutates_args=())
def _moments(x: Tensor) -> Tensor:
    """Mean and variance, (2, K, N, C)."""
    return checked(
        "moments",
        lambda: torch.stack(torch.var_mean(_wide(x), (-2, -1), correction=0)[::-1]),
        lambda: _kernels().moments(by_position(x)),
        (x,),
    )


@torch.library.custom_op("nap_lab::fused_bn_relu", mutates_args=())
def _fused_bn_relu(
    x: Tensor,
    factor: Tensor,
    shift: Tensor,
    moments: Tensor,
    units: Tensor,
    before: Tensor | None,
    scale: Tensor,
    offset: Tensor,
    eps: float,
    centre: bool,
    pool: bool,
) -> Tensor:
    return checked(
        "norm and pooling" if pool else "norm",
        lambda: channels_last(_pooled(_applied(x, factor, shift).relu(), pool).to(x.dtype)),
        lambda: _kernels().applied(by_position(x), factor, shift, pool).permute(0, 1, 4, 2, 3),
        (x, factor),
    )


@torch.library.custom_op("nap_lab::fused_bn_relu_sums", mutates_args=())
def _sums(dy: Tensor, x: Tensor, factor: Tensor, shift: Tensor, pool: bool) -> Tensor:
    """Σ g and Σ g · x over all positions, (2, K, N, C), of the gradient g in front of ReLU and pooling."""

    def plain() -> Tensor:
        g = _reaching(dy, _applied(x, factor, shift), pool)
        return torch.stack([g.sum((-2, -1)), (g * x).sum((-2, -1))])

    def quick() -> Tensor:
        return _kernels().sums(by_position(dy), by_position(x), factor, shift, pool)

    return checked("sums of a norm", plain, quick, (x, dy))


@torch.library.custom_op("nap_lab::fused_bn_relu_gradient", mutates_args=())
def _gradient(
    dy: Tensor, x: Tensor, factor: Tensor, shift: Tensor, level: Tensor, slope: Tensor, pool: bool
) -> Tensor:
    """factor · g + level + slope · x."""

    def plain() -> Tensor:
        g = _reaching(dy, _applied(x, factor, shift), pool)
        return channels_last((_over_space(factor) * g + _applied(x, slope, level)).to(x.dtype))

    def quick() -> Tensor:
        tensors = by_position(dy), by_position(x), factor, shift, level, slope
        return _kernels().gradient(*tensors, pool).permute(0, 1, 4, 2, 3)

    return checked("gradient of a norm", plain, quick, (x, dy))


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _over_space(small: Tensor) -> Tensor:
    return small[..., None, None]


def _applied(x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    return _wide(x) * _over_space(factor) + _over_space(shift)


def _pooled(stack: Tensor, pool: bool) -> Tensor:
    return F.max_pool2d(stack.flatten(0, 1), 2).unflatten(0, stack.shape[:2]) if pool else stack


def _reaching(dy: Tensor, value: Tensor, pool: bool) -> Tensor:
    """The gradient in front of ReLU and pooling, of `value`, from that of the output."""
    g = _wide(dy)
    if pool:
        _, at = F.max_pool2d(value.flatten(0, 1), 2, return_indices=True)
        g = F.max_unpool2d(g.flatten(0, 1), at, [2, 2], output_size=value.shape[-2:])
        g = g.unflatten(0, value.shape[:2])
    return torch.where(value > 0, g, 0.0)


def _kernels() -> Any:
    from nap.lab.loops.supervised.stacked import fused_bn_relu_triton

    return fused_bn_relu_triton


@_moments.register_fake
def _(x: Tensor) -> Tensor:
    return _wide(x).new_empty(2, *x.shape[:3])


@_fused_bn_relu.register_fake
def _(x: Tensor, *args: Any) -> Tensor:
    height, width = (side // 2 if args[-1] else side for side in x.shape[-2:])
    return like(x, (*x.shape[:3], height, width))


@_sums.register_fake
def _(dy: Tensor, x: Tensor, *args: Any) -> Tensor:
    return _wide(x).new_empty(2, *x.shape[:3])


@_gradient.register_fake
def _(dy: Tensor, x: Tensor, *args: Any) -> Tensor:
    return like(x, x.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps, ctx.centre, ctx.pool = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, factor, shift, moments, units, before, scale, _ = ctx.saved_tensors
    dy = channels_last(dy)
    sums = _sums(dy, x, factor, shift, ctx.pool)
    count = x.shape[-2] * x.shape[-1]
    level, slope, small = bn_affine_backward(sums, moments, units, before, scale, ctx.eps, ctx.centre, count)
    dx = _gradient(dy, x, factor, shift, level, slope, ctx.pool)
    of_front = None if before is None else small[0]
    return dx, None, None, None, None, of_front, small[1], small[2], None, None, None


_fused_bn_relu.register_autograd(_backward, setup_context=_keep)


@_moments.register_vmap
def _(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int]:
    output: Tensor = _moments(*one_stack(info.batch_size, in_dims, x))
    return output.unflatten(1, (info.batch_size, -1)), 1


@bn_affine.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], int]:
    output = bn_affine(*_one_stack(info.batch_size, in_dims, args, moments_at=0))
    return tuple(part.unflatten(0, (info.batch_size, -1)) for part in output), 0


@_fused_bn_relu.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    output: Tensor = _fused_bn_relu(*_one_stack(info.batch_size, in_dims, args, moments_at=3))
    return output.unflatten(0, (info.batch_size, -1)), 0


def _one_stack(size: int, axes: Sequence[int | None], args: Sequence[Any], moments_at: int) -> Iterator[Any]:
    """As `one_stack`, for arguments with moments, whose members are their second axis, and non-tensors."""
    for k, (part, axis) in enumerate(zip(args, axes, strict=True)):
        if k == moments_at:
            whole = part[None].expand(size, *part.shape) if axis is None else part.movedim(axis, 0)
            yield whole.transpose(0, 1).flatten(1, 2).contiguous()
        else:
            yield next(one_stack(size, [axis], part)) if isinstance(part, Tensor) else part
