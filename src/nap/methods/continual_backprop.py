"""Continual backprop: the least useful mature units are replaced, a few at a time (Dohare et al.)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nap.methods.contract import Training
from nap.methods.resets import UnitMethod, activity_of, check_trained, reset_units_
from nap.methods.wiring import Units
from nap.validation import check_range


def contribution(activity: Tensor, outgoing: Tensor) -> Tensor:
    """Mean |activation| of each unit times Σ|outgoing weights|: what the layers after it would miss.

    >>> contribution(torch.tensor([2.0, 1.0]), torch.tensor([0.5, 3.0]))
    tensor([1., 3.])
    """
    return activity * outgoing


def least_useful(utility: Tensor, eligible: Tensor, count: Tensor) -> Tensor:
    """Which `count` of the eligible units have the lowest utility, as booleans (..., U).

    >>> least_useful(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([True, False, True]), torch.tensor(1))
    tensor([False, False,  True])
    """
    order = torch.where(eligible, utility, torch.inf).argsort(-1).argsort(-1)
    return (order < count.unsqueeze(-1)) & eligible


@dataclass
class ContinualBackprop(UnitMethod):
    """Each update, a fraction of each layer's mature units, those of least utility, is reset.

    Utility is the running average of the contribution, as in the version of 2024 (Nature). A layer
    saves up `replacement_rate` × its mature units per update and replaces a unit whenever that reaches
    one. The activity is measured by one extra forward per update.

    Args:
        replacement_rate: fraction of mature units to replace per update.
        maturity: updates during which a new unit is safe.
        decay: of the running average.
        skip: layers to leave alone: see `UnitMethod`.
    """

    replacement_rate: float = 1e-4
    maturity: int = 100
    decay: float = 0.99

    def __post_init__(self) -> None:
        check_range(self, "replacement_rate", self.replacement_rate, 0, 1)
        check_range(self, "maturity", self.maturity, 0)
        check_range(self, "decay", self.decay, 0, 1)
        self._state: dict[str, dict[str, Tensor]] = {}

    @torch.no_grad()
    def after_step_(self, training: Training, inputs: Any = None) -> None:
        check_trained(training, self.plan)
        activity = activity_of(training, self.plan, inputs)
        chosen = {
            name: self._choose(training, units, activity[name]) for name, units in self.plan.layers.items()
        }
        reset_units_(training, self.plan, chosen)

    def _choose(self, training: Training, units: Units, activity: Tensor) -> Tensor:
        state = self._state.setdefault(
            units.name,
            {
                "utility": torch.zeros_like(activity),
                "age": torch.zeros_like(activity),
                "saved": torch.zeros_like(activity[..., 0]),
            },
        )
        sums = [
            entries.sums(training.parameters[entries.parameter].abs(), units.size, stacked=training.stacked)
            for entries in units.outgoing
        ]
        now = contribution(activity, torch.stack(sums).sum(0).to(activity.dtype))
        utility = self.decay * state["utility"] + (1 - self.decay) * now
        age = state["age"] + 1
        eligible = age > self.maturity
        saved = state["saved"] + self.replacement_rate * eligible.sum(-1)
        chosen = least_useful(utility, eligible, (saved + 1e-6).floor())  # ten times 0.1 makes one
        state["utility"] = utility.masked_fill(chosen, 0)
        state["age"] = age.masked_fill(chosen, 0)
        state["saved"] = saved - chosen.sum(-1)
        return chosen

    def state_dict(self) -> dict[str, Any]:
        return {name: {k: v.clone() for k, v in state.items()} for name, state in self._state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = {name: {k: v.clone() for k, v in of.items()} for name, of in state.items()}
