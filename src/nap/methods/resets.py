"""Giving a unit a new life: fresh weights in, none out, and no memory in the optimizer.

`UnitMethod` is what the methods that do so have in common; they differ in which units they choose.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nap.methods.contract import Method, Training
from nap.methods.draws import Generators, fresh_like
from nap.methods.wiring import Entries, Wiring, find_wiring, unit_activity


@dataclass
class UnitMethod(Method):
    """A method that acts on hidden units; `plan` says what belongs to which unit.

    `skip` names layers to leave alone. Each layer whose units cannot be told apart (residual sums and
    the like) must be named there, or all of them at once as "unwired".
    """

    host_side = True

    skip: Collection[str] | Literal["unwired"] = field(default=(), kw_only=True)

    def prepare_(self, model: nn.Module, inputs: Any = (), *, generator: Generators | None = None) -> None:
        self._plan = find_wiring(model, inputs).without(self.skip)

    @property
    def plan(self) -> Wiring:
        if not hasattr(self, "_plan"):
            name = type(self).__name__
            raise ValueError(f"{name} has not seen the model yet; call prepare_(model, inputs) first")
        return self._plan


def activity_of(training: Training, wiring: Wiring, inputs: Any) -> dict[str, Tensor]:
    """Mean |activation| of each unit by layer on these inputs, (U,) or (members, U)."""
    if inputs is None:
        raise ValueError("the units' activity is measured on the batch; call after_step_(training, inputs)")
    if not training.stacked:
        return unit_activity(training.model, wiring, inputs, training.parameters)
    measure = torch.func.vmap(
        lambda parameters, batch: unit_activity(training.model, wiring, batch, parameters),
        in_dims=(0, None if training.shared_batch else 0),
        randomness="same",
    )
    return measure(dict(training.parameters), inputs)


@torch.no_grad()
def reset_units_(training: Training, wiring: Wiring, chosen: Mapping[str, Tensor]) -> None:
    """Resets the chosen units, given for each layer as booleans (U,) or (members, U).

    Incoming entries (weights, bias, scale and offset of a norm) are drawn afresh, outgoing ones become
    zero, and the optimizer's running averages of exactly these entries become zero. Step counts stay,
    and so do the running statistics of a BatchNorm, which adapt by themselves, and a frozen bias, scale
    or offset. Nothing is changed if a parameter is missing (`check_trained`).
    """
    layers = [(wiring.layers[name], units) for name, units in chosen.items()]
    check_trained(training, wiring)
    for layer, units in layers:
        for entries in layer.incoming:
            theta = training.parameters.get(entries.parameter)
            if theta is None:
                continue  # a frozen bias, scale or offset
            fresh = fresh_like(
                training.initial[entries.parameter], training.generator, stacked=training.stacked
            )
            _overwrite_(training, entries, units, torch.where(entries.where(units), fresh, theta))
    # Afterwards, so that a new unit starts without weights from other new units in front of it.
    for layer, units in layers:
        for entries in layer.outgoing:
            theta = training.parameters[entries.parameter]
            _overwrite_(training, entries, units, theta.masked_fill(entries.where(units), 0))


def check_trained(training: Training, wiring: Wiring) -> None:
    """Raises unless the units' parameters are there and trained; a frozen bias, scale or offset may stay."""
    own = dict(training.model.named_parameters())
    for name in (e.parameter for layer in wiring.layers.values() for e in (*layer.incoming, *layer.outgoing)):
        if name not in own:
            raise ValueError(f"{name} is gone from the model; call prepare_ after nap.normalize_")
        frozen = not own[name].requires_grad
        if name not in training.parameters and not (frozen and own[name].ndim < 2):
            reason = "it is frozen" if frozen else "the optimizer does not train it"
            way_out = "unfreeze it" if frozen else "add it to the optimizer"
            raise ValueError(f"{name} belongs to hidden units, but {reason}; {way_out}, or skip its layer")


def _overwrite_(training: Training, entries: Entries, units: Tensor, value: Tensor) -> None:
    training.parameters[entries.parameter].copy_(value)
    for moment in training.moments(entries.parameter):
        moment.masked_fill_(entries.where(units), 0)
