"""Diagnostics inside anyone's training loop: one extra forward, one flat dictionary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nap.diagnostics.activations import ACTIVATIONS
from nap.diagnostics.norms import gradient_norm, parameter_norm
from nap.diagnostics.probing import evaluating
from nap.diagnostics.rank import feature_rank
from nap.diagnostics.units import dead_units, dormant_units, linearized_units
from nap.rates.learning_rate import effective_learning_rates

PENULTIMATE = "penultimate"
_CONVOLUTIONS = (nn.modules.conv._ConvNd,)


class Recorder:
    """Measures a model on a batch and returns numbers ready for any logger.

    By default it looks at the output of each activation module (all calls of it: the second is
    `name#2`) and at the input of the `nn.Linear` that runs last, called "penultimate". An activation
    written as a function (`F.relu`) is no module and cannot be hooked: make it a module, or name in
    `layers` any other module whose output shows the features.

    Units lie where the latest Linear or convolution put them: last axis or axis 1. Hooks exist only
    while `measure` runs.

    Args:
        layers: names or modules to look at instead, exactly these.
        every: `step` measures on each `every`-th call.
        optimizer: also report the effective learning rate of each weight (Definition 1).

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> numbers = Recorder(model).measure(torch.randn(16, 4))
    >>> sorted(numbers)[:3]
    ['dead/1', 'dead/penultimate', 'dormant/1']
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[str | nn.Module] | None = None,
        *,
        every: int = 1,
        optimizer: torch.optim.Optimizer | None = None,
        tau: float = 0.025,
        threshold: float = 0.01,
    ):
        if every < 1:
            raise ValueError(f"every is {every}; it counts calls of step(), so it is at least 1")
        self.model, self.every, self.optimizer = model, every, optimizer
        self.tau, self.threshold = tau, threshold
        self._explicit = layers is not None
        self._layers = _resolve(model, layers) if layers is not None else _activations(model)
        self._calls = 0

    @property
    def layers(self) -> tuple[str, ...]:
        """What is looked at: the names of modules, and "penultimate" for the last Linear's input."""
        return tuple(self._layers) + (() if self._explicit else (PENULTIMATE,))

    def step(self, batch: Any) -> dict[str, float]:
        """`measure(batch)` on each `every`-th call; an empty dictionary on the others."""
        self._calls += 1
        return {} if self._calls % self.every else self.measure(batch)

    def measure(self, batch: Any) -> dict[str, float]:
        """Numbers by name, from one forward in eval mode on `batch`: a tensor, or args, or kwargs.

        `linearized/`, `dead/`, `dormant/` and `rank/` with each layer's name, `norm/parameters`,
        `norm/gradients` if there are any, and with an optimizer `rate/` with each weight's name.
        """
        args, kwargs = _arguments(batch)
        found: dict[str, Tensor] = {}
        with evaluating(self.model), torch.no_grad(), self._hooks(found):
            self.model(*args, **kwargs)
        self._check(found)
        found["norm/parameters"] = parameter_norm(self.model)
        if any(p.grad is not None for p in self.model.parameters()):
            found["norm/gradients"] = gradient_norm(self.model)
        numbers = torch.stack([value.double().cpu() for value in found.values()]).tolist()
        row = dict(zip(found, numbers, strict=True))
        if self.optimizer is not None:
            rates = effective_learning_rates(self.model, self.optimizer)
            row |= {f"rate/{name}": float(rate) for name, rate in rates.items()}
        return row

    @contextmanager
    def _hooks(self, found: dict[str, Tensor]) -> Iterator[None]:
        unit_axis: list[int | None] = [None]  # where the latest Linear or convolution put its units
        last_input: list[Tensor] = []
        calls: dict[str, int] = {}

        def entered_linear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            last_input[:] = [args[0] if args else kwargs["input"]]

        def left_weights(module: nn.Module, args: Any, output: Any) -> None:
            unit_axis[0] = 1 if isinstance(module, _CONVOLUTIONS) else -1

        def left(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                calls[name] = calls.get(name, 0) + 1
                title = name if calls[name] == 1 else f"{name}#{calls[name]}"
                found.update(self._measures(title, output, unit_axis[0]))

            return hook

        handles = []
        try:
            for module in self.model.modules():
                if isinstance(module, (nn.Linear, *_CONVOLUTIONS)):
                    handles.append(module.register_forward_hook(left_weights))
                if isinstance(module, nn.Linear):
                    handles.append(module.register_forward_pre_hook(entered_linear, with_kwargs=True))
            for name, module in self._layers.items():
                handles.append(module.register_forward_hook(left(name)))
            yield
        finally:
            for handle in handles:
                handle.remove()
        if last_input and not self._explicit:
            found.update(self._measures(PENULTIMATE, last_input[0], -1))

    def _measures(self, name: str, features: Any, unit_axis: int | None) -> dict[str, Tensor]:
        if not isinstance(features, Tensor):
            raise ValueError(
                f"{name} returns {type(features).__name__}, not a tensor of features; "
                "name a module inside it that returns one"
            )
        if unit_axis == 1 and features.ndim == 2:
            unit_axis = -1
        return {
            f"linearized/{name}": linearized_units(features, unit_axis=unit_axis),
            f"dead/{name}": dead_units(features, unit_axis=unit_axis),
            f"dormant/{name}": dormant_units(features, self.tau, unit_axis=unit_axis),
            f"rank/{name}": feature_rank(features, self.threshold, unit_axis=unit_axis),
        }

    def _check(self, found: dict[str, Tensor]) -> None:
        if not found:
            raise ValueError(
                f"no activation module and no nn.Linear ran in {type(self.model).__name__}; activations "
                "written as functions cannot be hooked: name modules in Recorder(model, layers=[...])"
            )
        for name in self._layers if self._explicit else ():
            if f"dead/{name}" not in found:
                raise ValueError(f"{name} did not run in this forward; take it out of `layers`")


def _activations(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, ACTIVATIONS)}


def _resolve(model: nn.Module, layers: Sequence[str | nn.Module]) -> dict[str, nn.Module]:
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


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, dict):
        return (), batch
    return (tuple(batch), {}) if isinstance(batch, (tuple, list)) else ((batch,), {})
