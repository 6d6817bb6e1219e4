"""A VGG-like network for small images (Appendix B.4): 3×3 convolutions, pooling, hidden layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from nap.lab.models.presets import HE, POOL, VGG16


def vgg(
    shape: Sequence[int],
    classes: int,
    *,
    channels: Sequence[int] = VGG16,
    mean: bool = False,
    hidden: Sequence[int] = (512, 512),
    batch_norm: bool = False,
    dropout: float = 0.0,
    size: float = HE,
    weight_norm: float = 0.0,
) -> nn.Sequential:
    """Convolutions of so many channels each, 0 for a pooling, then hidden layers; ReLU everywhere.

    Args:
        mean: the last map is averaged over all places; else it is flattened.
        dropout: share of a hidden layer's units that are left out of each update.
        size: deviation of the convolutions' weights at the start, times √inputs. The norms after them make
            up for it, but projected weights keep it: half of it is four times the effective rate.
        weight_norm: of each convolution at the start; 0 leaves it to `size`, by which it grows with √outputs,
            and projected layers with few outputs learn at a larger rate than those with many.

    >>> from nap.lab.models.presets import VGG_LIKE
    >>> net = vgg((3, 32, 32), 10)
    >>> sum(isinstance(m, (nn.Conv2d, nn.Linear)) for m in net.modules())
    16
    >>> sum(p.numel() for p in net.parameters())
    15245130
    >>> sum(p.numel() for p in vgg((3, 32, 32), 10, channels=VGG_LIKE, mean=True, hidden=()).parameters())
    5465098
    """
    layers: list[nn.Module] = []
    inputs, height, width = shape
    for outputs in channels:
        if outputs == POOL:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
            continue
        norm = [_batch_norm(outputs)] if batch_norm else []
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=not batch_norm), *norm, nn.ReLU()]
        inputs = outputs
    if not height * width:
        raise ValueError(
            f"images of {shape[1]}×{shape[2]} pixels are too small for {list(channels).count(POOL)} poolings;"
            " write fewer zeros in --channels"
        )
    if mean:
        layers.append(nn.AdaptiveAvgPool2d(1))
        height, width = 1, 1
    layers.append(nn.Flatten())
    for a, b in pairwise((inputs * height * width, *hidden)):
        layers += [nn.Linear(a, b), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
    last = [inputs * height * width, *hidden][-1]
    net = nn.Sequential(OrderedDict(body=nn.Sequential(*layers), head=nn.Linear(last, classes)))
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            times = size if isinstance(module, nn.Conv2d) else HE
            nn.init.normal_(module.weight, std=times * module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            if weight_norm and isinstance(module, nn.Conv2d):
                with torch.no_grad():
                    module.weight.mul_(weight_norm / module.weight.norm())
    return net


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    """One that does not count its batches: nobody asks, and it is a launch for each norm in each update."""
    norm = nn.BatchNorm2d(channels)
    norm.num_batches_tracked = None
    return norm
