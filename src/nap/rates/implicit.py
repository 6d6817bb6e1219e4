"""The schedule that growing norms hide, recorded from a free run and made explicit (§4.1).

A projected run follows a free one if its rates fall as the free norms grow. With c = ρ/‖W‖, where ρ is
the norm that projection keeps and W the free weight, the projected weight is c·W and its gradient g/c.
Definition 1 then asks for lr·cᵖ, p = 2 for raw gradients and 1 for normalised updates.

That is exact for optimizers without memory. For the others, see `nap.rates.twins`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from nap.projection.hooks import was_real
from nap.projection.sphere import norms_of
from nap.rates.learning_rate import Update, matrix_like, update_of
from nap.schedules import Schedule, Value
from nap.weights import Role

Mode = Literal["per-layer", "global"]


class ImplicitSchedule:
    """The weight norms of an unprojected run over time: its implicit schedule, to replay as an explicit one.

    With the norm of all weights together for one global rate, which is what the paper does after
    §4.1, or layer by layer (mode="per-layer"). Norms stay on the device until they are read.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> schedule = ImplicitSchedule(model)
    >>> with torch.no_grad():
    ...     _ = model.weight.mul_(2)
    >>> schedule.record(model)
    >>> schedule.multipliers(1, update=Update.RAW)
    {'weight': 0.25}
    """

    def __init__(self, model: nn.Module, *, every: int = 1, weights: Collection[str] | None = None):
        """Record step 0; `record` stores each `every`-th step, with straight lines in between.

        By default it follows the weights that Definition 1 is about, scale-invariant and normalised
        ones, where `nap.normalize_` has traced the model, and else all that look like matrices.
        """
        if every < 1:
            raise ValueError(f"every is {every}, but norms can be recorded each 1 or more steps")
        self.names = _followed(model, weights)
        self.every = every
        self.steps = 0
        self._rows = [usable_norms(model, self.names, "choose others with weights=[...]")]

    def record(self, model: nn.Module) -> None:
        """Record the norms after one more update."""
        self.steps += 1
        if self.steps % self.every == 0:
            self._rows.append(norms_by_name(model, self.names))

    def attach(self, model: nn.Module, optimizer: Optimizer) -> RemovableHandle:
        """Records after each real update of `optimizer`, until the `remove()` of what it returns.

        A step that a `GradScaler` skips is no update. To know that of a fused optimizer, each of its
        steps under a scaler waits for the device, as the scaler itself does for any other optimizer.
        """

        def after_step(optimizer: Optimizer, *_: Any) -> None:
            if was_real(optimizer):
                self.record(model)

        return optimizer.register_step_post_hook(after_step)

    def curves(self, *, mode: Mode = "global", update: Update | str) -> dict[str, np.ndarray]:
        """The factors for the learning rate of each weight, at steps 0, every, 2·every, …"""
        norms = on_host(torch.stack(self._rows))
        return dict(zip(self.names, rate_multipliers(norms[0], norms, mode, Update(update)).T, strict=True))

    def multipliers(self, step: int, *, mode: Mode = "global", update: Update | str) -> dict[str, float]:
        """`curves` at one step; after the end of the record, its last value."""
        curves = self.curves(mode=mode, update=update)
        return {name: self._at(step, curve) for name, curve in curves.items()}

    def scheduler(
        self, optimizer: Optimizer, *, mode: Mode = "global", update: Update | str | None = None
    ) -> Schedule:
        """A torch scheduler that multiplies the rates of `optimizer` as the free run's norms would.

        Mode "per-layer" needs an optimizer with a group to each weight, made from
        `nap.rates.learning_rate.per_weight_groups(model)`; groups without a recorded weight keep their rate.
        """
        curves = self.curves(mode=mode, update=update_of(optimizer) if update is None else update)
        if mode == "global":
            return Schedule(optimizer, self._follow(curves[self.names[0]]))
        names = [set(group.get("param_names", ())) & set(self.names) for group in optimizer.param_groups]
        if max(map(len, names)) > 1 or set().union(*names) != set(self.names):
            raise ValueError(
                f"{type(optimizer).__name__} has no group of its own for each of {self.names}; make it "
                f"from nap.rates.learning_rate.per_weight_groups(model), or use mode='global'"
            )
        constant = np.ones(1)
        return Schedule(optimizer, [self._follow(curves[n.pop()] if n else constant) for n in names])

    def state_dict(self) -> dict[str, Any]:
        """The record as plain numbers and strings: for a checkpoint, or for JSON as it is."""
        norms = torch.stack(self._rows).tolist()
        return {"names": self.names, "every": self.every, "steps": self.steps, "norms": norms}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`, with the same model at the same step."""
        device = self._rows[-1].device if hasattr(self, "_rows") else None
        self.names, self.every, self.steps = list(state["names"]), state["every"], state["steps"]
        self._rows = list(torch.tensor(state["norms"], dtype=torch.float64, device=device))

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> ImplicitSchedule:
        """The schedule of a stored run, without its model."""
        schedule = cls.__new__(cls)
        schedule.load_state_dict(state)
        return schedule

    def __str__(self) -> str:
        wide = max(map(len, self.names))
        lines = [f"{'weight':{wide}}  {'norm':>9}  {f'after {self.steps}':>12}  growth"]
        for name, before, after in zip(
            self.names, self._rows[0].tolist(), self._rows[-1].tolist(), strict=True
        ):
            lines.append(f"{name:{wide}}  {before:9.4g}  {after:12.4g}  ×{after / before:.3f}")
        return "\n".join(lines)

    def _at(self, step: int, curve: np.ndarray) -> float:
        return float(np.interp(step / self.every, np.arange(len(curve)), curve))

    def _follow(self, curve: np.ndarray) -> Value:
        return lambda step, peak: peak * self._at(step, curve)


def _followed(model: nn.Module, weights: Collection[str] | None) -> list[str]:
    chosen = list(matrix_like(model, weights).values())
    if weights is None and any(row.role is not Role.WEIGHT for row in chosen):  # traced
        chosen = [row for row in chosen if row.role in (Role.SCALE_INVARIANT, Role.NORMALISED)]
    if not chosen:
        found = "weights=[] names none" if weights is not None else f"{type(model).__name__} has none"
        raise ValueError(
            f"no weights to record: {found} whose norm sets a rate; name some with weights=[...], or use "
            "nap.normalize_ first"
        )
    return [row.name for row in chosen]


def rate_multipliers(reference: np.ndarray, norms: np.ndarray, mode: str, update: Update) -> np.ndarray:
    """(ρ/‖W‖)ᵖ of each weight, or of all as one: the rate multipliers of Definition 1."""
    if mode == "global":
        reference = np.full_like(reference, np.linalg.norm(reference))
        norms = np.linalg.norm(norms, axis=-1, keepdims=True)
    elif mode != "per-layer":
        raise ValueError(f"mode is {mode!r}, but it must be 'per-layer' or 'global'")
    return (reference / norms) ** update.power


def norms_by_name(model: nn.Module, names: Collection[str]) -> Tensor:
    """‖W‖ of each of these weights, on the device of the first."""
    norms = [norms_of(model.get_parameter(name)).reshape(1) for name in names]
    return torch.cat([norm.to(norms[0].device) for norm in norms])


def usable_norms(model: nn.Module, names: Collection[str], way_out: str) -> Tensor:
    """The norms at the start of a run; a weight of zeros is refused."""
    norms = norms_by_name(model, names)
    for name, norm in zip(names, norms.tolist(), strict=True):
        if norm == 0:
            raise ValueError(f"{name} has zero norm, so it has no direction to keep; {way_out}")
    return norms


def on_host(norms: Tensor) -> np.ndarray:
    """Norms as float64 numbers (waits for the device)."""
    return norms.cpu().double().numpy()
