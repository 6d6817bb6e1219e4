"""Measures a model while it trains: every so many updates, one flat dictionary for any logger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nap.diagnostics.recorder import Recorder
from nap.projection.hooks import followed, inner_optimizers
from nap.projection.refusals import held_by
from nap.rates.learning_rate import Update, effective_learning_rates, matrix_like, update_of
from nap.sharded import resharded

Log = Callable[[dict[str, float]], None]


class Monitor:
    """Pass measures to `log` when training starts and after every `every`-th step of the first optimizer.

    Names begin with "nap/": `rate/` of each weight (Definition 1), `norm/parameters`, `norm/gradients`, and
    for each activation and the input of the last layer `dead/`, `linearized/`, `dormant/` and `rank/` on the
    probe (see `Recorder`). Gradients are those that the step used, after clipping.

    Args:
        probe: a fixed batch, moved to the device of the model: a tuple lists the arguments, a dict names
            them, anything else is the only one.
        every: updates between measurements. A measurement costs a forward and the singular values of the
            features: about 1 % of the time at the default (docs/recipes.md).
        layers: modules to look at instead of all activations, as in `Recorder`.
        update: how to read the lr of an optimizer that is not known, "raw" or "normalised".

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> monitor = Monitor(model, torch.randn(16, 4), print, every=100).attach(optimizer)  # doctest: +ELLIPSIS
    {'nap/dormant/1': ...}
    """

    def __init__(
        self,
        model: nn.Module,
        probe: Any,
        log: Log,
        *,
        every: int = 1000,
        layers: Sequence[str | nn.Module] | None = None,
        update: Update | str | None = None,
    ):
        if every < 1:
            raise ValueError(f"every is {every}; it counts updates, so it is at least 1")
        self._model, self._log, self._every, self._update = model, log, every, update
        device = next(model.parameters()).device
        probe = tree_map(lambda part: part.to(device) if isinstance(part, Tensor) else part, probe)
        named = isinstance(probe, dict)
        self._args: Any = () if named else probe
        self._kwargs: dict[str, Any] | None = probe if named else None
        self._recorder = Recorder(model, layers)
        self._optimizers: list[Any] = []
        self._updates = 0
        self._hook: Any = None

    def attach(self, *optimizers: Any) -> Self:
        """Measure once, so that a wrong probe is an error now, and from here on follow the optimizers."""
        inner, weights = inner_optimizers(*optimizers), matrix_like(self._model)
        matrices = {id(self._model.get_parameter(name)) for name in weights}
        self._optimizers = [one for one in inner if matrices & held_by(one)] or inner
        if self._update is None:
            for optimizer in self._optimizers:
                update_of(optimizer)
        self._log(self.measure())
        after = torch.compiler.disable(
            self._after_step
        )  # it counts: a compiled step would be made anew each time
        self._hook = followed(optimizers[0])[0].register_step_post_hook(after)
        return self

    def detach(self) -> None:
        """Remove the hooks from the optimizers."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def measure(self) -> dict[str, float]:
        """The measures of the current model and optimizer."""
        with resharded(self._model):
            numbers = self._recorder.measure(self._args, self._kwargs)
        for optimizer in self._optimizers:
            rates = effective_learning_rates(self._model, optimizer, update=self._update)
            numbers |= {f"rate/{name}": float(rate) for name, rate in rates.items()}
        return {f"nap/{name}": number for name, number in numbers.items()}

    @property
    def updates(self) -> int:
        """The number of steps so far, for the step axis of a logger."""
        return self._updates

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._updates += 1
        if self._updates % self._every == 0:
            self._log(self.measure())
