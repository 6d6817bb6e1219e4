"""How active each hidden unit is on a batch: one forward, seen through hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nap.diagnostics.probing import as_arguments, evaluating
from nap.methods.wiring.units import Units, Wiring


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
