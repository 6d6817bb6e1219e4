"""Hidden units and their parameter entries.

Incoming entries: the unit's row of the weight that computes it, its bias, and its scale and offset in norms
before the activation. Outgoing entries: its columns in every layer that reads it. That is one column of a
Linear, height × width columns behind a flattened channel, or a kernel slice of a convolution.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nap.diagnostics.probing import as_arguments, evaluating
from nap.methods.wiring.entries import Entries


@dataclass(frozen=True)
class Units:
    """The units of one hidden layer, with their activation and their incoming and outgoing entries."""

    name: str
    size: int
    activation: str  # the module whose output has the units
    call: int  # which of its calls in a forward, from 0
    axis: int  # of that output
    unit: Tensor  # the unit at each index of that axis, −1 for none
    incoming: tuple[Entries, ...]
    outgoing: tuple[Entries, ...]
    norms_after: tuple[str, ...] = ()  # norms between the activation and the layers that read it

    def activity(self, output: Tensor) -> Tensor:
        """Mean |activation| of each unit over batch and positions, from the activation's output."""
        samples = output.detach().abs().movedim(self.axis, -1).reshape(-1, output.shape[self.axis])
        dtype = torch.promote_types(samples.dtype, torch.float32)
        unit = torch.where(self.unit < 0, self.size, self.unit).to(output.device)
        zeros = torch.zeros(self.size + 1, dtype=dtype, device=output.device)
        count = zeros.index_add(0, unit, torch.ones_like(unit, dtype=dtype))
        total = zeros.index_add(0, unit, samples.mean(0, dtype=dtype))
        return (total / count)[: self.size]


@dataclass(frozen=True)
class Wiring:
    """The hidden layers of a model by name, and those whose wiring could not be established."""

    layers: Mapping[str, Units]
    problems: Mapping[str, str]  # why the units of that layer cannot be told apart
    outputs: tuple[str, ...]  # layers that only feed the output, and so have no hidden units

    def without(self, skip: Collection[str] | Literal["unwired"]) -> Wiring:
        """The wiring without these layers; an error for other problems ("unwired" skips them all)."""
        unknown = [] if skip == "unwired" else sorted(set(skip) - set(self.layers) - set(self.problems))
        if unknown:
            raise ValueError(f"{unknown} cannot be skipped: no hidden layer has such a name; see\n{self}")
        open_ = [] if skip == "unwired" else [name for name in self.problems if name not in skip]
        if open_:
            reasons = "; ".join(f"{name}: {self.problems[name]}" for name in open_)
            raise ValueError(
                f"the units of some layers cannot be told apart ({reasons}); leave these layers alone with "
                f"skip={open_!r}, or all such layers with skip='unwired'"
            )
        kept = {name: units for name, units in self.layers.items() if name not in skip}
        if not kept:
            raise ValueError(f"no hidden layer is left to act on:\n{self}")
        dropped = {name: "skipped as asked" for name in self.layers if name not in kept}
        return Wiring(kept, {**self.problems, **dropped}, self.outputs)

    def __str__(self) -> str:
        rows = [
            f"{u.name}  {u.size} units, seen at {u.activation}"
            f"  in: {', '.join(e.parameter for e in u.incoming)}"
            f"  out: {', '.join(e.parameter for e in u.outgoing)}"
            for u in self.layers.values()
        ]
        rows += [f"{name}  left alone: {reason}" for name, reason in self.problems.items()]
        return "\n".join(rows + [f"{name}  left alone: output" for name in self.outputs])


def unit_activity(
    model: nn.Module, wiring: Wiring, inputs: Any, parameters: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Mean |activation| of each unit by layer, from one forward in eval mode without gradients.

    `torch.func.vmap` over `parameters` (and `inputs`) measures a stacked population.
    """
    found: dict[str, Tensor] = {}
    calls: dict[str, int] = {}
    at: dict[str, list[Units]] = {}
    for units in wiring.layers.values():
        at.setdefault(units.activation, []).append(units)

    def look(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            found.update({u.name: u.activity(output) for u in at[name] if u.call == calls.get(name, 0)})
            calls[name] = calls.get(name, 0) + 1

        return hook

    handles = [model.get_submodule(name).register_forward_hook(look(name)) for name in at]
    try:
        with evaluating(model), torch.no_grad():
            torch.func.functional_call(model, dict(parameters or {}), as_arguments(inputs))
    finally:
        for handle in handles:
            handle.remove()
    missing = sorted(set(wiring.layers) - set(found))
    if missing:
        raise ValueError(
            f"the activations of {missing} did not run on these inputs, as they did on the example"
        )
    return found
