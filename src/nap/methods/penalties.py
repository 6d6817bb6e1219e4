"""Penalties on the parameters: towards zero (L2), and towards where they began (L2-init)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nap.methods.contract import Elementwise
from nap.validation import check_range


def squared_distance(
    parameters: Mapping[str, Tensor], origin: Mapping[str, Tensor] | None = None, *, stacked: bool = False
) -> Tensor:
    """‖θ − θ₀‖² over all parameters (θ₀ = 0 if None); one value per member if stacked.

    >>> squared_distance({"w": torch.tensor([3.0, 4.0])})
    tensor(25.)
    """
    terms = []
    for name, theta in parameters.items():
        difference = theta if origin is None else theta - origin[name]
        terms.append(difference.square().reshape(len(theta) if stacked else 1, -1).sum(1))
    total = torch.stack(terms).sum(0)
    return total if stacked else total[0]


@dataclass
class L2(Elementwise):
    """strength · ‖θ‖² in the loss. Its gradient is 2 · strength · θ, twice what `weight_decay` means.

    >>> L2(0.1).penalty({"w": torch.tensor([3.0, 4.0])}, {})
    tensor(2.5000)
    """

    strength: float

    def __post_init__(self) -> None:
        check_range(self, "strength", self.strength, 0)

    def penalty(
        self, parameters: Mapping[str, Tensor], initial: Mapping[str, Tensor], *, stacked: bool = False
    ) -> Tensor:
        distance = squared_distance(self.mine(parameters), self.origin(initial), stacked=stacked)
        return self.strength * distance

    def origin(self, initial: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """Where the penalty pulls to; None is zero."""
        return None


@dataclass
class L2Init(L2):
    """Regenerative regularisation: strength · ‖θ − θ₀‖² in the loss (Kumar et al., 2023).

    >>> L2Init(0.1).penalty({"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([3.0, 3.0])})
    tensor(0.1000)
    """

    def origin(self, initial: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return initial
