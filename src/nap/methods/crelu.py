"""CReLU in place of ReLU: both signs of each pre-activation go on (Abbas et al., 2023)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from nap.diagnostics.probing import as_arguments, evaluating
from nap.methods.contract import Method
from nap.methods.draws import Generators, fresh_like
from nap.methods.relus import exchange_relus_, refuse_functional_relu
from nap.methods.wiring import Wiring, find_wiring


class ConcatenatedReLU(nn.ReLU):
    """[ReLU(x), ReLU(−x)] along one axis: twice the features, and never all of them silent.

    >>> ConcatenatedReLU(axis=1)(torch.tensor([[2.0, -3.0]]))
    tensor([[2., 0., 0., 3.]])
    """

    def __init__(self, axis: int = -1):
        super().__init__()
        self.axis = axis

    def forward(self, input: Tensor) -> Tensor:
        return torch.cat([input.relu(), (-input).relu()], self.axis)

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


@dataclass
class CReLU(Method):
    """Each `nn.ReLU` becomes a `ConcatenatedReLU`, and the layers that read it take twice the inputs.

    The new columns are drawn from the old weights' values, and all of the weight is divided by
    √(new fan-in / old fan-in), as an initialisation with that fan-in would have it. This happens in
    place, before training, `nap.normalize_` and the optimizer. Where the doubled features reach anything
    but Linear layers and convolutions without groups (a norm after the ReLU, a residual sum), the
    model cannot be widened and that is an error. The model is changed as a whole or not at all.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> CReLU().prepare_(model, torch.ones(1, 2), generator=Generator().manual_seed(0))
    >>> print(model[2])
    Linear(in_features=6, out_features=1, bias=True)
    """

    def prepare_(self, model: nn.Module, inputs: Any = (), *, generator: Generators | None = None) -> None:
        if not isinstance(generator, Generator):
            raise ValueError(
                "CReLU draws new weights; pass prepare_(model, inputs, generator=torch.Generator())"
            )
        refuse_functional_relu(model, inputs)
        wiring = find_wiring(model, inputs)
        _check(model, wiring)
        trial, state = copy.deepcopy(model), generator.get_state()
        _widen_(trial, wiring, generator)
        try:
            with evaluating(trial), torch.no_grad():
                trial(*as_arguments(inputs))
        except RuntimeError as error:
            raise ValueError(f"{type(model).__name__} cannot run with twice the features: {error}") from error
        generator.set_state(state)
        _widen_(model, wiring, generator)


def _check(model: nn.Module, wiring: Wiring) -> None:
    seen = {units.activation for units in wiring.layers.values()}
    relus = [name for name, module in model.named_modules() if type(module) is nn.ReLU]
    unwired = [name for name in relus if name not in seen]
    if unwired:
        raise ValueError(
            f"it could not be established what reads {unwired}, so it cannot be widened for CReLU:\n{wiring}"
        )
    for units in wiring.layers.values():
        if units.activation not in relus:
            continue
        if units.norms_after:
            raise ValueError(
                f"{units.norms_after[0]} normalises the output of {units.activation}, and CReLU doubles it"
            )
        for entries in units.outgoing:
            module = model.get_submodule(entries.parameter.rpartition(".")[0])
            if getattr(module, "groups", 1) != 1:
                raise ValueError(f"{entries.parameter} is a grouped convolution, which CReLU cannot widen")


def _widen_(model: nn.Module, wiring: Wiring, generator: Generator) -> None:
    axes: dict[str, set[int]] = {}
    relus = {name for name, module in model.named_modules() if type(module) is nn.ReLU}
    extra: dict[str, int] = {}
    for units in wiring.layers.values():
        if units.activation in relus:
            axes.setdefault(units.activation, set()).add(units.axis)
            for entries in units.outgoing:
                reader = model.get_submodule(entries.parameter.rpartition(".")[0])
                unit = entries.unit.movedim(_input_axis(reader), 0).flatten(1).amax(1)
                extra[entries.parameter] = extra.get(entries.parameter, 0) + int((unit >= 0).sum())
    for name, found in axes.items():
        if len(found) > 1:
            raise ValueError(f"{name} is used on tensors whose units lie on different axes; use two modules")
    modules = {model.get_submodule(name): found.copy().pop() for name, found in axes.items()}
    exchange_relus_(model, lambda relu: ConcatenatedReLU(modules[relu]))
    for parameter, columns in extra.items():
        _add_columns_(model.get_submodule(parameter.rpartition(".")[0]), columns, generator)


def _input_axis(layer: nn.Module) -> int:
    return 0 if isinstance(layer, nn.modules.conv._ConvTransposeNd) else 1


@torch.no_grad()
def _add_columns_(layer: nn.Module, columns: int, generator: Generator) -> None:
    assert isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd))
    axis, old = _input_axis(layer), layer.weight
    drawn = [fresh_like(old, generator) for _ in range(-(-columns // old.shape[axis]))]
    new = torch.cat([old, torch.cat(drawn, axis).narrow(axis, 0, columns)], axis)
    layer.weight = nn.Parameter(new * (old.shape[axis] / new.shape[axis]) ** 0.5, old.requires_grad)
    if isinstance(layer, nn.Linear):
        layer.in_features += columns
    else:
        layer.in_channels += columns
