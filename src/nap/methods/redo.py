"""ReDo: recycling dormant units (Sokar et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nap.diagnostics.units import dormancy_scores
from nap.methods.contract import Training
from nap.methods.resets import UnitMethod, activity_of, check_trained, reset_units_
from nap.validation import check_range


def dormant(activity: Tensor, tau: float) -> Tensor:
    """Which units have a dormancy score of at most τ, from their mean |activation|, (..., U).

    >>> import torch
    >>> dormant(torch.tensor([1.0, 0.0, 5.0]), tau=0.1)
    tensor([False,  True, False])
    """
    return dormancy_scores(activity) <= tau


@dataclass
class ReDo(UnitMethod):
    """Every so many updates, dormant units get fresh incoming weights and outgoing weights of zero.

    A dead unit's reset leaves the function exactly as it was, unless a norm lies between the unit's
    layer and its activation that mixes units (LayerNorm, GroupNorm): there a new row moves the mean
    and variance that the others share.

    Under NaP the weights leave their radius until the next projection. If all units of a layer are
    dead, the whole weight that reads them becomes zero, and has no direction until the next optimizer
    step gives it one. A `Projector` leaves a weight of zero as it is; after that step it puts it back
    on its radius, so this first step decides its direction.

    Args:
        tau: dormancy score up to which a unit counts as dormant.
        every: updates between two resets.
        skip: layers to leave alone: see `UnitMethod`.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> redo = ReDo(every=100)
    >>> redo.prepare_(model, torch.ones(1, 4))
    >>> print(redo.plan)
    0  3 units, seen at 1  in: 0.weight, 0.bias  out: 2.weight
    2  left alone: output
    """

    tau: float = 0.025
    every: int = 1000

    def __post_init__(self) -> None:
        check_range(self, "tau", self.tau, 0)
        check_range(self, "every", self.every, 1)
        self._updates = 0

    def after_step_(self, training: Training, inputs: Any = None) -> None:
        self._updates += 1
        if self._updates == 1:  # the first reset may be an hour away
            check_trained(training, self.plan)
        if self._updates % self.every == 0:
            activity = activity_of(training, self.plan, inputs)
            reset_units_(training, self.plan, {k: dormant(a, self.tau) for k, a in activity.items()})

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._updates = state["updates"]
