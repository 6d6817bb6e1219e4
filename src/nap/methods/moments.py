"""What an optimizer remembers of one parameter, entry by entry."""

from __future__ import annotations

import torch
from torch import Tensor

_AVERAGES = {
    "momentum_buffer",
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_inf",
    "square_avg",
    "grad_avg",
    "acc_delta",
}


def moments_of(optimizer: torch.optim.Optimizer, name: str, parameter: Tensor) -> list[Tensor]:
    """The optimizer's running averages for one parameter, each of its shape; step counts are not among them.

    >>> layer = torch.nn.Linear(2, 1)
    >>> adam = torch.optim.Adam(layer.parameters())
    >>> layer(torch.ones(1, 2)).sum().backward(); adam.step()
    >>> [tuple(m.shape) for m in moments_of(adam, "weight", layer.weight)]
    [(1, 2), (1, 2)]
    """
    found = []
    for key, value in optimizer.state.get(parameter, {}).items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            continue
        if key not in _AVERAGES or value.shape != parameter.shape:
            raise ValueError(
                f"{type(optimizer).__name__} keeps {key!r} of shape {tuple(value.shape)} for {name}, and "
                "it is not known how to reset it for single units; use SGD, RMSprop or one of Adam's family"
            )
        found.append(value)
    return found
