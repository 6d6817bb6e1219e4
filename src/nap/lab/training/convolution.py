"""Convolutions of stacked networks: under `vmap` one launch does those of all members.

`convolve` is an operation with rules of its own for `vmap` and gradients, so what is written for one network
can be compiled for K. On a GPU it is done by `convolution_kernels`, whose results are compared with PyTorch's
the first time that they meet a shape; elsewhere, and where they differ, by one convolution a member.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

FAR = 2e-2  # what two ways to compute in bfloat16 may differ by, relative to the result; others differ less
KINDS = (torch.bfloat16, torch.float16, torch.float32)  # numbers that the kernels are for
_trusted: dict[tuple[Any, ...], bool] = {}  # by operation, shapes and kind of numbers


def convolve(images: Tensor, kernel: Tensor) -> Tensor:
    """Images (N, C, H, W) by a kernel (O, C, side, side) of odd side: (N, O, H, W), zeros beyond the edges.

    >>> images, kernels = torch.randn(2, 5, 3, 8, 8), torch.randn(2, 4, 3, 3, 3)  # of two networks
    >>> both = torch.vmap(convolve)(images, kernels)
    >>> torch.allclose(both[1], F.conv2d(images[1], kernels[1], padding=1), atol=1e-5)
    True
    """
    found: Tensor = _convolved(images[None], kernel[None])
    return found[0]


@torch.library.custom_op("nap_lab::convolved", mutates_args=())
def _convolved(x: Tensor, w: Tensor) -> Tensor:
    pad = w.shape[-1] // 2
    return _best(
        "convolution",
        lambda: [F.conv2d(a, b, padding=pad) for a, b in zip(x, w, strict=True)],
        lambda kernels: kernels.convolved(_by_position(x), _by_position(w)),
        (x, w),
    )


@torch.library.custom_op("nap_lab::image_gradient", mutates_args=())
def _image_gradient(dy: Tensor, w: Tensor) -> Tensor:
    pad, shape = w.shape[-1] // 2, (dy.shape[1], w.shape[2], *dy.shape[3:])
    return _best(
        "gradient of images",
        lambda: [conv2d_input(shape, b, a, padding=pad) for a, b in zip(dy, w, strict=True)],
        lambda kernels: kernels.image_gradient(_by_position(dy), _by_position(w)),
        (dy, w),
    )


@torch.library.custom_op("nap_lab::kernel_gradient", mutates_args=())
def _kernel_gradient(dy: Tensor, x: Tensor, side: int) -> Tensor:
    shape = (dy.shape[2], x.shape[2], side, side)
    return _best(
        "gradient of kernels",
        lambda: [conv2d_weight(b, shape, a, padding=side // 2) for a, b in zip(dy, x, strict=True)],
        lambda kernels: kernels.kernel_gradient(_by_position(dy), _by_position(x), side),
        (dy, x),
    )


def _best(
    name: str, plain: Callable[[], list[Tensor]], quick: Callable[[Any], Tensor], given: tuple[Tensor, Tensor]
) -> Tensor:
    """By the kernels where there are any and they are right, else member by member."""
    kernels = _kernels(given[0].device.type) if given[0].dtype in KINDS else None
    key = (name, given[0].dtype, given[0].device, *(tensor.shape for tensor in given))
    recording = given[0].is_cuda and torch.cuda.is_current_stream_capturing()  # nothing can be looked at then
    if kernels is None or not _trusted.get(key, not recording):
        return _laid_out(torch.stack(plain()))
    found = quick(kernels).permute(0, 1, 4, 2, 3)
    if key not in _trusted:
        expected = torch.stack(plain())
        size, apart = expected.float().norm().item(), (found.float() - expected.float()).norm().item()
        if not 0 < size < float("inf"):
            return _laid_out(expected)  # nothing to judge by: the next time will tell
        _trusted[key] = apart <= FAR * size  # not so where it is not a number
        if not _trusted[key]:
            shapes = " by ".join(str(tuple(tensor.shape)) for tensor in given)
            warnings.warn(
                f"the {name} of stacked networks, {shapes}, differs by {apart / size:.1g} from PyTorch's, "
                "which is used instead: slower, and right. Please report it",
                stacklevel=2,
            )
            return _laid_out(expected)
    return found


@cache
def _kernels(device: str) -> Any:
    if device != "cuda":
        return None
    try:
        from nap.lab.training import convolution_kernels
    except ImportError:  # Triton comes with the CUDA builds of torch only
        return None
    return convolution_kernels


def _by_position(stack: Tensor) -> Tensor:
    """(K, N, C, H, W) as (K, N, H, W, C) in memory; channels-last images are so already."""
    return stack.permute(0, 1, 3, 4, 2).contiguous()


def _laid_out(stack: Tensor) -> Tensor:
    return _by_position(stack).permute(0, 1, 4, 2, 3)


def _like(stack: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An empty stack of images or kernels of this shape, (K, N, C, H, W)."""
    members, images, channels, *space = shape
    return stack.new_empty(members, images, *space, channels).permute(0, 1, 4, 2, 3)


@_convolved.register_fake
def _(x: Tensor, w: Tensor) -> Tensor:
    return _like(x, (*x.shape[:2], w.shape[1], *x.shape[3:]))


@_image_gradient.register_fake
def _(dy: Tensor, w: Tensor) -> Tensor:
    return _like(dy, (*dy.shape[:2], w.shape[2], *dy.shape[3:]))


@_kernel_gradient.register_fake
def _(dy: Tensor, x: Tensor, side: int) -> Tensor:
    return _like(x, (len(x), dy.shape[2], x.shape[2], side, side))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, w = ctx.saved_tensors
    dy = _laid_out(dy)  # here, where the compiler sees it, and not once in each of the two below
    dx = _image_gradient(dy, w) if ctx.needs_input_grad[0] else None
    return dx, _kernel_gradient(dy, x, w.shape[-1]) if ctx.needs_input_grad[1] else None


_convolved.register_autograd(_backward, setup_context=_keep)


@_convolved.register_vmap
def _(info: Any, in_dims: tuple[int | None, int | None], x: Tensor, w: Tensor) -> tuple[Tensor, int]:
    x, w = (
        stack.expand(info.batch_size, *stack.shape) if axis is None else stack.movedim(axis, 0)
        for stack, axis in zip((x, w), in_dims, strict=True)
    )
    found: Tensor = _convolved(x.flatten(0, 1), w.flatten(0, 1))
    return found.unflatten(0, (info.batch_size, -1)), 0


class Convolution(nn.Conv2d):
    """An `nn.Conv2d` of odd side, whole steps and as much padding as that takes, that calls `convolve`."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found = convolve(input.to(weight.dtype), weight)
        return found if bias is None else found + bias.to(found.dtype).view(-1, 1, 1)


def adopt_(model: nn.Module) -> None:
    """Have the convolutions of a model, in place, call `convolve`; they stay what they are else."""
    found = [(name, module) for name, module in model.named_modules() if type(module) is nn.Conv2d]
    for name, module in found:
        side, pad = module.kernel_size[0], module.padding
        same = pad == "same" or pad == (side // 2, side // 2)
        if module.kernel_size != (side, side) or not side % 2 or not same or module.padding_mode != "zeros":
            raise ValueError(
                f"{name} is {module}; networks are stacked only where convolutions keep the size of images: "
                "of odd side, padded by half of it with zeros"
            )
        if (module.stride, module.dilation, module.groups) != ((1, 1), (1, 1), 1):
            raise ValueError(f"{name} is {module}; stacked networks have stride, dilation and groups of 1")
    for _, module in found:
        module.__class__ = Convolution
