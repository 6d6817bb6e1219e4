"""The two small networks of the continual experiments (appendices "Toy experiment details" and "Vision")."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(shape: Sequence[int], classes: int, *, width: int = 512, depth: int = 4) -> nn.Sequential:
    """`depth` hidden layers of `width` ReLU units over the flattened image.

    >>> len(mlp((3, 32, 32), 10).body)
    9
    """
    sizes = [_numel(shape), *[width] * depth]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return _with_head(layers, width, classes)


def cnn(
    shape: Sequence[int],
    classes: int,
    *,
    channels: Sequence[int] = (32, 32, 32, 32),
    hidden: int = 256,
    pool_every: int = 2,
) -> nn.Sequential:
    """3×3 convolutions with ReLU, a 2×2 max-pool after every `pool_every` of them, and one hidden layer.

    The paper gives channels and widths; kernel size, padding and where it pools are our choice.

    >>> cnn((3, 32, 32), 10, channels=(32, 32, 64, 64), hidden=512).body[-2].in_features
    4096
    """
    layers: list[nn.Module] = []
    size = min(shape[1:])
    if pool_every > 0 and size < 2 ** (len(channels) // pool_every):
        raise ValueError(
            f"images of {shape[1]}×{shape[2]} pixels are too small for {len(channels) // pool_every} "
            "poolings; use fewer convolutions, or a larger pool_every"
        )
    for i, (inputs, outputs) in enumerate(zip([shape[0], *channels[:-1]], channels, strict=True), start=1):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        if pool_every > 0 and i % pool_every == 0:
            layers.append(nn.MaxPool2d(2))
    halvings = len(channels) // pool_every if pool_every > 0 else 0
    flat = channels[-1] * (shape[1] >> halvings) * (shape[2] >> halvings)
    layers += [nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU()]
    return _with_head(layers, hidden, classes)


def _with_head(layers: Sequence[nn.Module], width: int, classes: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(body=nn.Sequential(*layers), head=nn.Linear(width, classes)))


def _numel(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
