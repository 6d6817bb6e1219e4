"""ReDo: recycling dormant units (Sokar et al., 2023)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from nap.diagnostics.units import dormancy_scores
from nap.methods.assembly import find_wiring
from nap.methods.contract import Method, Training, check_range
from nap.methods.draws import Generators
from nap.methods.resets import activity_of, reset_units_
from nap.methods.wiring import Wiring


def dormant(activity: Tensor, tau: float) -> Tensor:
    """Which units have a dormancy score of at most τ, from their mean |activation|, (..., U).

    >>> import torch
    >>> dormant(torch.tensor([1.0, 0.0, 5.0]), tau=0.1)
    tensor([False,  True, False])
    """
    return dormancy_scores(activity) <= tau


@dataclass
class ReDo(Method):
    """Every so many updates, dormant units get fresh incoming weights and outgoing weights of zero.

    A dead unit's reset leaves the function exactly as it was, unless a norm lies between the unit's
    layer and its activation that mixes units (LayerNorm, GroupNorm): there a new row moves the mean
    and variance that the others share. `plan` says what belongs to which unit.

    Under NaP the weights leave their radius until the next projection. If all units of a layer are
    dead, the weights that read them become zero until the next optimizer step gives them a direction.

    Args:
        tau: dormancy score up to which a unit counts as dormant.
        every: updates between two resets.
        skip: names of layers to leave alone; each layer whose units cannot be told apart (residual
            sums and the like) must be named here, or all of them at once as "unwired".

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> redo = ReDo(every=100)
    >>> import torch; redo.prepare_(model, torch.ones(1, 4))
    >>> print(redo.plan)
    0  3 units, seen at 1  in: 0.weight, 0.bias  out: 2.weight
    2  left alone: output
    """

    tau: float = 0.025
    every: int = 1000
    skip: Collection[str] | Literal["unwired"] = ()

    def __post_init__(self) -> None:
        check_range(self, "tau", self.tau, 0)
        check_range(self, "every", self.every, 1)
        self._updates = 0
        self._plan: Wiring | None = None

    @property
    def plan(self) -> Wiring:
        if self._plan is None:
            raise ValueError("ReDo has not seen the model yet; call prepare_(model, inputs) first")
        return self._plan

    def prepare_(self, model: nn.Module, inputs: Any = (), *, generator: Generators | None = None) -> None:
        self._plan = find_wiring(model, inputs).without(self.skip)

    def after_step_(self, training: Training, inputs: Any = None) -> None:
        self._updates += 1
        if self._updates % self.every == 0:
            activity = activity_of(training, self.plan, inputs)
            reset_units_(training, self.plan, {k: dormant(a, self.tau) for k, a in activity.items()})

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._updates = state["updates"]
