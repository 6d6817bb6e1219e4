"""Convolutions of stacked networks: under `vmap` one launch does those of all members.

`convolve` has rules of its own for `vmap` and gradients, so that code for one network can be compiled for K.
On a GPU it runs `conv_triton`, once that has been checked; elsewhere one convolution a member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

from nap.lab.loops.supervised.stacked.checked_kernel import checked
from nap.lab.loops.supervised.stacked.layout import by_position, channels_last, like, one_stack


def convolve(images: Tensor, kernel: Tensor) -> Tensor:
    """Images (N, C, H, W) by a kernel (O, C, side, side) of odd side: (N, O, H, W), zeros beyond the edges.

    >>> images, kernels = torch.randn(2, 5, 3, 8, 8), torch.randn(2, 4, 3, 3, 3)  # of two networks
    >>> both = torch.vmap(convolve)(images, kernels)
    >>> torch.allclose(both[1], F.conv2d(images[1], kernels[1], padding=1), atol=1e-5)
    True
    """
    output: Tensor = _convolved(images[None], kernel[None])
    return output.squeeze(0)  # the gradient of output[0] would be a copy


@torch.library.custom_op("nap_lab::convolved", mutates_args=())
def _convolved(x: Tensor, w: Tensor) -> Tensor:
    pad = w.shape[-1] // 2
    return checked(
        "convolution",
        lambda: _each(lambda a, b: F.conv2d(a, b, padding=pad), x, w),
        lambda: _kernels().convolved(by_position(x), by_position(w)).permute(0, 1, 4, 2, 3),
        (x, w),
    )


@torch.library.custom_op("nap_lab::image_gradient", mutates_args=())
def _image_gradient(dy: Tensor, w: Tensor) -> Tensor:
    pad, shape = w.shape[-1] // 2, (dy.shape[1], w.shape[2], *dy.shape[3:])
    return checked(
        "gradient of images",
        lambda: _each(lambda a, b: conv2d_input(shape, b, a, padding=pad), dy, w),
        lambda: _kernels().image_gradient(by_position(dy), by_position(w)).permute(0, 1, 4, 2, 3),
        (dy, w),
    )


@torch.library.custom_op("nap_lab::kernel_gradient", mutates_args=())
def _kernel_gradient(dy: Tensor, x: Tensor, side: int) -> Tensor:
    shape = (dy.shape[2], x.shape[2], side, side)
    return checked(
        f"gradient of kernels of side {side}",
        lambda: _each(lambda a, b: conv2d_weight(b, shape, a, padding=side // 2), dy, x),
        lambda: _kernels().kernel_gradient(by_position(dy), by_position(x), side).permute(0, 1, 4, 2, 3),
        (dy, x),
    )


def _each(one: Callable[[Tensor, Tensor], Tensor], *stacks: Tensor) -> Tensor:
    return channels_last(torch.stack([one(*pair) for pair in zip(*stacks, strict=True)]))


def _kernels() -> Any:
    from nap.lab.loops.supervised.stacked import conv_triton

    return conv_triton


@_convolved.register_fake
def _(x: Tensor, w: Tensor) -> Tensor:
    return like(x, (*x.shape[:2], w.shape[1], *x.shape[3:]))


@_image_gradient.register_fake
def _(dy: Tensor, w: Tensor) -> Tensor:
    return like(dy, (*dy.shape[:2], w.shape[2], *dy.shape[3:]))


@_kernel_gradient.register_fake
def _(dy: Tensor, x: Tensor, side: int) -> Tensor:
    return like(x, (len(x), dy.shape[2], x.shape[2], side, side))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
    x, w = ctx.saved_tensors
    dy = channels_last(dy)  # here, where the compiler sees it, and not once in each of the two below
    dx = _image_gradient(dy, w) if ctx.needs_input_grad[0] else None
    return dx, _kernel_gradient(dy, x, w.shape[-1]) if ctx.needs_input_grad[1] else None


_convolved.register_autograd(_backward, setup_context=_keep)


@_convolved.register_vmap
def _(info: Any, in_dims: tuple[int | None, int | None], x: Tensor, w: Tensor) -> tuple[Tensor, int]:
    output: Tensor = _convolved(*one_stack(info.batch_size, in_dims, x, w))
    return output.unflatten(0, (info.batch_size, -1)), 0


class Convolution(nn.Conv2d):
    """An `nn.Conv2d` of odd side and stride 1 that keeps the size of images; it calls `convolve`."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        output = convolve(input.to(weight.dtype), weight)
        return output if bias is None else output + bias.to(output.dtype).view(-1, 1, 1)


def adopt_(model: nn.Module) -> None:
    """Have the convolutions of a model call `convolve`."""
    convolutions = [(name, module) for name, module in model.named_modules() if type(module) is nn.Conv2d]
    for name, module in convolutions:
        side, pad = module.kernel_size[0], module.padding
        same = pad == "same" or pad == (side // 2, side // 2)
        if module.kernel_size != (side, side) or not side % 2 or not same or module.padding_mode != "zeros":
            raise ValueError(
                f"{name} is {module}; networks are stacked only where convolutions keep the size of images: "
                "of odd side, padded by half of it with zeros"
            )
        if (module.stride, module.dilation, module.groups) != ((1, 1), (1, 1), 1):
            raise ValueError(f"{name} is {module}; stacked networks have stride, dilation and groups of 1")
    for _, module in convolutions:
        module.__class__ = Convolution
