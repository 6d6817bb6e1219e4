"""Leaky ReLU in place of ReLU: a unit that keeps a gradient cannot die (§5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from nap.methods.contract import Method
from nap.methods.draws import Generators
from nap.methods.relus import exchange_relus_, refuse_functional_relu
from nap.validation import check_range


@dataclass
class LeakyReLU(Method):
    """Each `nn.ReLU` becomes an `nn.LeakyReLU(slope)`, before training and before `nap.normalize_`.

    A ReLU written as a function (`F.relu`) cannot be exchanged: that is an error, found by running
    the model on the example inputs.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> LeakyReLU(0.1).prepare_(model, torch.ones(1, 2))
    >>> model[1]
    LeakyReLU(negative_slope=0.1)
    """

    slope: float = 0.01

    def __post_init__(self) -> None:
        check_range(self, "slope", self.slope, 0, 1)

    def prepare_(self, model: nn.Module, inputs: Any = (), *, generator: Generators | None = None) -> None:
        refuse_functional_relu(model, inputs)
        exchange_relus_(model, lambda old: nn.LeakyReLU(self.slope, inplace=old.inplace))
