"""Which modules a `Recorder` looks at, and which it cannot know to be activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from nap.diagnostics.activations import ACTIVATIONS
from nap.norms.norm import has_parts


def activations_in(model: nn.Module) -> dict[str, nn.Module]:
    """The activation modules by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, ACTIVATIONS)}


def unknown_in(model: nn.Module) -> dict[str, str]:
    """Modules of the user's own without parts or parameters, by class: some may be activations."""
    return {
        name: type(module).__name__
        for name, module in model.named_modules()
        if not type(module).__module__.startswith(("torch.", "nap."))
        and not isinstance(module, ACTIVATIONS)
        and not has_parts(module)
        and not any(True for _ in module.parameters(recurse=False))
    }


def resolved(model: nn.Module, layers: Sequence[str | nn.Module]) -> dict[str, nn.Module]:
    """The modules that are named or given, by name."""
    modules = dict(model.named_modules())
    names = {module: name for name, module in modules.items()}
    found = {}
    for layer in layers:
        name = layer if isinstance(layer, str) else names.get(layer)
        if name is None or name not in modules:
            raise ValueError(
                f"{layer!r} is no module of {type(model).__name__}; choose among {list(modules)[1:]}"
            )
        found[name] = modules[name]
    return found


def as_features(name: str, output: Any) -> Tensor:
    """The output of a layer, if it is a tensor; else an error."""
    if not isinstance(output, Tensor):
        raise ValueError(
            f"{name} returns {type(output).__name__}, not a tensor of features; "
            "name a module inside it that returns one"
        )
    return output
