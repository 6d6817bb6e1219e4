"""The state of optimizers, changed in place (graphs hold it), and the norms and rates of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import nap
from nap import diagnostics
from nap.weights import Role

FOLLOWED = (Role.SCALE_INVARIANT, Role.NORMALISED)  # weights that a norm follows


def state_tensors(optimizer: Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values()]


@torch.no_grad()
def reset_(optimizer: Optimizer) -> None:
    for value in state_tensors(optimizer):
        value.zero_()


def named_state(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """The state of each parameter, by name."""
    return {name: dict(optimizer.state[p]) for name, p in parameters.items()}


@torch.no_grad()
def load_named_state_(
    optimizer: Optimizer, parameters: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Any]]
) -> None:
    """Restore what `named_state` returned."""
    for name, parameter in parameters.items():
        for key, value in optimizer.state[parameter].items():
            value.copy_(state[name][key])


def norms_and_rates(model: nn.Module, optimizer: Optimizer, followed: Sequence[str]) -> dict[str, float]:
    """The norm of all parameters, and the geometric mean of the effective rates of the `followed` weights."""
    row = {"parameter_norm": float(diagnostics.parameter_norm(model))}
    if followed:
        rates = nap.effective_learning_rates(model, optimizer, weights=followed)
        row["effective_rate"] = geometric_mean(rates.values())
    return row


def geometric_mean(values: Iterable[float]) -> float:
    """
    >>> round(geometric_mean([1.0, 4.0]), 6)
    2.0
    """
    return torch.tensor(list(values)).double().log().mean().exp().item()
