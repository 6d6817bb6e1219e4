"""Which modules are activations, where hidden units can be seen, and which of them a `Recorder` looks at.

Some are exactly zero on a whole range of inputs (ReLU and its kin), so that a unit can be seen to be
dead or linear; the others (GELU, SiLU, tanh, …) are not, and counting zeros says nothing about them.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from nap.norms.norm import has_parts

ACTIVATIONS: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.RReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.GLU,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Tanh,
    nn.Hardtanh,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardshrink,
    nn.Softshrink,
    nn.Tanhshrink,
    nn.Softplus,
    nn.Softsign,
    nn.Threshold,
)

_ZERO_ON_A_RANGE = (nn.ReLU, nn.ReLU6, nn.Hardshrink, nn.Softshrink, nn.Hardsigmoid, nn.Hardswish)


def gives_zeros(module: nn.Module) -> bool | None:
    """Whether an activation is exactly zero on a range of inputs; None for anything else.

    >>> gives_zeros(nn.ReLU()), gives_zeros(nn.GELU()), gives_zeros(nn.Flatten())
    (True, False, None)
    """
    if not isinstance(module, ACTIVATIONS):
        return None
    if isinstance(module, nn.LeakyReLU):
        return module.negative_slope == 0
    if isinstance(module, nn.Threshold):
        return module.value == 0
    if type(module) is nn.Hardtanh:
        return 0 in (module.min_val, module.max_val)
    return isinstance(module, _ZERO_ON_A_RANGE)


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
    """The output of a layer, refused unless it is a tensor."""
    if not isinstance(output, Tensor):
        raise ValueError(
            f"{name} returns {type(output).__name__}, not a tensor of features; "
            "name a module inside it that returns one"
        )
    return output
