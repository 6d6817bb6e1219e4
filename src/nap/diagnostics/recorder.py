"""Diagnostics inside anyone's training loop: one extra forward, one flat dictionary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nap.diagnostics.activations import activations_in, as_features, gives_zeros, resolved, unknown_in
from nap.diagnostics.axes import CARRIERS, PRODUCERS, UnitAxes, is_weighted
from nap.diagnostics.norms import gradient_norm, parameter_norm
from nap.diagnostics.probing import as_arguments, evaluating
from nap.diagnostics.rank import feature_rank
from nap.diagnostics.units import dead_units, dormant_units, linearized_units
from nap.rates.learning_rate import effective_learning_rates

PENULTIMATE = "penultimate"


class Recorder:
    """Measures a model on a batch and returns numbers ready for any logger.

    By default it looks at the output of each activation module (all calls of it: the second is
    `name#2`) and at the input of the `nn.Linear` that runs last, called "penultimate". An activation
    written as a function (`F.relu`) or of a class outside `ACTIVATIONS` is not seen: name in `layers`
    a module whose output shows the features. `print` the recorder to read what it looks at.

    `dead/` and `linearized/` count exact zeros. They are left out for activations that have none on any
    range of inputs (GELU, SiLU, tanh, …), and for features of another origin that hold no zero.

    Units lie where the latest Linear or convolution put them, on the axis of its width. Hooks exist
    only while `measure` runs.

    Args:
        layers: names or modules to look at instead, exactly these.
        every: `step` measures on each `every`-th call.
        optimizer: also report the effective learning rate of each weight (Definition 1).
        unit_axis: the axis of the units by name of layer, where it should not be looked for.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    >>> numbers = Recorder(model).measure(torch.randn(16, 4))
    >>> sorted(numbers)[:3]
    ['dead/1', 'dormant/1', 'dormant/3']
    >>> Recorder(model)
    Recorder of Sequential
      1: ReLU
      3: GELU, without dead/ and linearized/, which count exact zeros
      penultimate: what the last nn.Linear reads
      not seen: activations written as functions, and modules that are not in ACTIVATIONS
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
        unit_axis: Mapping[str, int] | None = None,
    ):
        if every < 1:
            raise ValueError(f"every is {every}; it counts calls of step(), so it is at least 1")
        self.model, self.every, self.optimizer = model, every, optimizer
        self.tau, self.threshold, self.unit_axis = tau, threshold, dict(unit_axis or {})
        self._explicit = layers is not None
        self._layers = resolved(model, layers) if layers is not None else activations_in(model)
        self._calls = 0
        for name in self.unit_axis:
            if name.partition("#")[0] not in self.layers:
                raise ValueError(f"unit_axis names {name!r}, which is not looked at; {self.layers} are")

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the modules that are measured, and "penultimate" for the last Linear's input."""
        return tuple(self._layers) + (() if self._explicit else (PENULTIMATE,))

    def __repr__(self) -> str:
        rows = [f"Recorder of {type(self.model).__name__}"]
        for name, module in self._layers.items():
            left_out = ", without dead/ and linearized/, which count exact zeros"
            rows.append(f"{name}: {type(module).__name__}{left_out if gives_zeros(module) is False else ''}")
        if not self._explicit:
            rows.append(f"{PENULTIMATE}: what the last nn.Linear reads")
            rows.append(
                "not seen: activations written as functions, and modules that are not in ACTIVATIONS"
                + "".join(f"\n    {name}: {kind}" for name, kind in unknown_in(self.model).items())
            )
        return "\n  ".join(rows)

    def step(self, args: Any, kwargs: Mapping[str, Any] | None = None) -> dict[str, float]:
        """`measure(args, kwargs)` on each `every`-th call; an empty dictionary on the others."""
        self._calls += 1
        return {} if self._calls % self.every else self.measure(args, kwargs)

    def measure(self, args: Any, kwargs: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Numbers by name, from one forward in eval mode.

        `linearized/`, `dead/`, `dormant/` and `rank/` with each layer's name, `norm/parameters`,
        `norm/gradients` if there are any, and with an optimizer `rate/` with each weight's name.

        Args:
            args: as in `nap.plan`: a tuple lists the arguments, anything else (a dict too) is the only one.
            kwargs: named arguments; `measure((), batch)` for a model called as `model(**batch)`.
        """
        measures: dict[str, Tensor] = {}
        with evaluating(self.model), torch.no_grad(), self._hooks(measures):
            self.model(*as_arguments(args), **(kwargs or {}))
        self._check(measures)
        measures["norm/parameters"] = parameter_norm(self.model)
        if any(p.grad is not None for p in self.model.parameters()):
            measures["norm/gradients"] = gradient_norm(self.model)
        numbers = torch.stack([value.double().cpu() for value in measures.values()]).tolist()
        row = dict(zip(measures, numbers, strict=True))
        if self.optimizer is not None:
            rates = effective_learning_rates(self.model, self.optimizer)
            row |= {f"rate/{name}": float(rate) for name, rate in rates.items()}
        return row

    @contextmanager
    def _hooks(self, measures: dict[str, Tensor]) -> Iterator[None]:
        axes = UnitAxes()
        latest: list[nn.Module] = []  # of those that make new features
        last_linear: list[tuple[Tensor, bool | None]] = []  # its input, and whether that has zeros
        calls: dict[str, int] = {}

        def entered_linear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            zeros = gives_zeros(latest[0]) if latest else None
            last_linear[:] = [(args[0] if args else kwargs["input"], zeros)]

        def follow(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                if isinstance(module, PRODUCERS):
                    axes.produced(name, module, output)
                elif isinstance(module, CARRIERS):
                    axes.carried(args[0] if args else None, output)
                else:
                    axes.lost()
                if not isinstance(module, (nn.Identity, nn.modules.dropout._DropoutNd)):
                    latest[:] = [module]

            return hook

        def look(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                calls[name] = calls.get(name, 0) + 1
                title = name if calls[name] == 1 else f"{name}#{calls[name]}"
                axis = self.unit_axis.get(title, self.unit_axis.get(name))
                if axis is None:
                    axis = axes.of(name, as_features(name, output))
                measures.update(self._measures(title, as_features(name, output), axis, gives_zeros(module)))

            return hook

        handles = []
        try:
            for name, module in self.model.named_modules():
                if isinstance(module, CARRIERS) or is_weighted(module):
                    handles.append(module.register_forward_hook(follow(name)))
                if isinstance(module, nn.Linear):
                    handles.append(module.register_forward_pre_hook(entered_linear, with_kwargs=True))
            for name, module in self._layers.items():
                handles.append(module.register_forward_hook(look(name)))
            yield
        finally:
            for handle in handles:
                handle.remove()
        for features, zeros in last_linear if not self._explicit else ():
            axis = self.unit_axis.get(PENULTIMATE, -1)
            measures.update(self._measures(PENULTIMATE, features, axis, zeros))

    def _measures(
        self, name: str, features: Tensor, unit_axis: int | None, zeros: bool | None
    ) -> dict[str, Tensor]:
        measures = {
            f"dormant/{name}": dormant_units(features, self.tau, unit_axis=unit_axis),
            f"rank/{name}": feature_rank(features, self.threshold, unit_axis=unit_axis),
        }
        if bool((features == 0).any()) if zeros is None else zeros:
            measures[f"linearized/{name}"] = linearized_units(features, unit_axis=unit_axis)
            measures[f"dead/{name}"] = dead_units(features, unit_axis=unit_axis)
        return measures

    def _check(self, measures: dict[str, Tensor]) -> None:
        if not measures:
            raise ValueError(
                f"no activation module and no nn.Linear ran in {type(self.model).__name__}; activations "
                "written as functions cannot be hooked: name modules in Recorder(model, layers=[...])"
            )
        for name in self._layers if self._explicit else ():
            if f"dormant/{name}" not in measures:
                raise ValueError(f"{name} did not run in this forward; take it out of `layers`")
