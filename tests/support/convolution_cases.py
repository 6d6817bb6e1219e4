"""Images and kernels of stacked networks, and their convolutions by PyTorch, one network at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu import DEVICE

SIZES = [  # members, images, height, width, channels, outputs, side
    (2, 2, 5, 6, 3, 8, 3),
    (3, 2, 4, 4, 16, 24, 3),
    (1, 3, 7, 7, 5, 70, 5),
    (2, 2, 6, 6, 32, 16, 1),
]


def given(size: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Images, kernels and a gradient, channels last in memory as those of the lab's networks."""
    k, n, h, w, c, o, side = size
    generator = torch.Generator().manual_seed(0)
    shapes = (k, n, h, w, c), (k, o, side, side, c), (k, n, h, w, o)
    made = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    x, kernels, dy = (part.to(DEVICE, dtype).permute(0, 1, 4, 2, 3) for part in made)
    return x, kernels, dy


def by_hand(x: Tensor, w: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, w = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    y = torch.stack([F.conv2d(a, b, padding=w.shape[-1] // 2) for a, b in zip(x, w, strict=True)])
    dx, dw = torch.autograd.grad(y, (x, w), dy.double())
    return y.detach(), dx, dw


def last(stack: Tensor) -> Tensor:
    return stack.permute(0, 1, 3, 4, 2).contiguous()
