"""The schedule that growing norms hide, made explicit (§4.1): from a record, or from a twin alongside.

A projected run follows a free one if its rates fall as the free norms grow. With c = ρ/‖W‖, where ρ is
the norm that projection keeps and W the free weight, the projected weight is c·W and its gradient g/c.
Definition 1 then asks for lr·cᵖ, p = 2 for raw gradients and 1 for normalised updates.

That alone is exact for optimizers without memory. Momentum and Adam keep sums of past gradients, each
taken at another norm, and Adam's eps compares gradients with a constant. Feed c·(g/c) = g instead: the
state is then the free twin's, so is its update u, and lr·c gives c·W − lr·c·u = c·(W − lr·u), the free
twin's next weight up to its norm. Weight decay λ, inside or outside of the gradient, is exact as λ/c.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from nap.learning_rate import Update, matrix_like, per_weight_groups, update_of, weight_norm
from nap.schedules import Schedule, Value
from nap.weights import Role, weight_groups

Loss = Callable[[nn.Module], Tensor]
Mode = Literal["per-layer", "global"]
TwinMode = Literal["exact", "per-layer", "global", "none"]


class ImplicitSchedule:
    """The norms of a free run's weights, step by step: its hidden schedule, to replay as an open one.

    Layer by layer, or with the norm of all weights together for one global rate, which is what the
    paper does after §4.1. Norms stay on the device until they are read.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> schedule = ImplicitSchedule(model)
    >>> with torch.no_grad():
    ...     _ = model.weight.mul_(2)
    >>> schedule.record(model)
    >>> schedule.multipliers(1, update=Update.RAW)
    {'weight': 0.25}
    """

    def __init__(self, model: nn.Module, *, every: int = 1, weights: Collection[str] | None = None):
        """Notes step 0; `record` notes each `every`-th step, and between these the curve is straight."""
        if every < 1:
            raise ValueError(f"every is {every}, but norms can be recorded each 1 or more steps")
        self.names = list(matrix_like(model, weights))
        self.every = every
        self.steps = 0
        self._rows = [_first_norms(model, self.names, "choose others with weights=[...]")]

    def record(self, model: nn.Module) -> None:
        """Notes the norms after one more update."""
        self.steps += 1
        if self.steps % self.every == 0:
            self._rows.append(_norms(model, self.names))

    def attach(self, model: nn.Module, optimizer: Optimizer) -> RemovableHandle:
        """Records after each step of `optimizer`, until the `remove()` of what it returns."""
        return optimizer.register_step_post_hook(lambda *_: self.record(model))

    def curves(self, *, mode: Mode = "per-layer", update: Update | str) -> dict[str, np.ndarray]:
        """What to multiply the rate of each weight by, at steps 0, every, 2·every and so on."""
        norms = _on_host(torch.stack(self._rows))
        return dict(zip(self.names, _multipliers(norms[0], norms, mode, Update(update)).T, strict=True))

    def multipliers(self, step: int, *, mode: Mode = "per-layer", update: Update | str) -> dict[str, float]:
        """`curves` at one step; after the end of the record, its last value."""
        curves = self.curves(mode=mode, update=update)
        return {name: self._at(step, curve) for name, curve in curves.items()}

    def scheduler(
        self, optimizer: Optimizer, *, mode: Mode = "global", update: Update | str | None = None
    ) -> Schedule:
        """A torch scheduler that multiplies the rates of `optimizer` as the free run's norms would.

        Mode "per-layer" needs an optimizer with a group to each weight, made from
        `nap.learning_rate.per_weight_groups(model)`; groups without a recorded weight keep their rate.
        """
        curves = self.curves(mode=mode, update=update_of(optimizer) if update is None else update)
        if mode == "global":
            return Schedule(optimizer, self._follow(curves[self.names[0]]))
        names = [set(group.get("param_names", ())) & set(self.names) for group in optimizer.param_groups]
        if max(map(len, names)) > 1 or set().union(*names) != set(self.names):
            raise ValueError(
                f"{type(optimizer).__name__} has no group of its own for each of {self.names}; make it "
                f"from nap.learning_rate.per_weight_groups(model), or use mode='global'"
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
        """The schedule of a run whose model is not at hand."""
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


class TwinLosses(NamedTuple):
    """The losses of both twins before one update."""

    free: float
    projected: float

    @property
    def gap(self) -> float:
        return abs(self.free - self.projected)


class TwinPair:
    """A network that trains freely and its twin on the sphere, from one start and on the same data (§4.1).

    `make_optimizer` takes parameter groups, as the optimizers of torch do. `mode` says how the twin's
    rates follow the free one's: "exact" (rate × c, gradient × c), "per-layer" (rate × cᵖ: the
    paper's), "global" (one c from the norm of all coupled weights, for all parameters) or "none".
    `coupled` names the weights to project; by default those that `nap.normalize_` found to be
    scale-invariant. All others are trained alike in both. Rates and weight decay are read from
    `free_optimizer` at each step, so a scheduler belongs there. Outside of "exact", weight decay is
    the same number in both.

    >>> model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.LayerNorm(8, eps=0), nn.Linear(8, 1)).double()
    >>> pair = TwinPair(model, lambda groups: torch.optim.Adam(groups, lr=0.1), coupled=["0.weight"])
    >>> x = torch.randn(16, 4, dtype=torch.float64)
    >>> for _ in range(5):
    ...     losses = pair.step(lambda net: net(x).square().mean())
    >>> losses.gap < 1e-12 and pair.distance(x) < 1e-12
    True
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[list[dict[str, Any]]], Optimizer],
        *,
        mode: TwinMode = "exact",
        coupled: Collection[str] | None = None,
        update: Update | str | None = None,
    ):
        if mode not in get_args(TwinMode):
            raise ValueError(f"mode is {mode!r}, but it must be one of {list(get_args(TwinMode))}")
        self.mode = mode
        self.coupled = _coupled(model, coupled)
        self.free, self.projected = deepcopy(model), deepcopy(model)
        self.free_optimizer = make_optimizer(per_weight_groups(self.free, self.coupled))
        self.projected_optimizer = make_optimizer(per_weight_groups(self.projected, self.coupled))
        self._update = update_of(self.free_optimizer) if update is None else Update(update)
        self._radii = _on_host(_first_norms(model, self.coupled, "leave it out of coupled=[...]"))
        self._weights = [self.projected.get_parameter(name) for name in self.coupled]
        for weight, group in zip(self._weights, self.projected_optimizer.param_groups, strict=False):
            if len(group["params"]) != 1 or group["params"][0] is not weight:
                raise ValueError("make_optimizer must keep the parameter groups as it is given them")

    def step(self, loss_fn: Loss) -> TwinLosses:
        """One update of both. `loss_fn` is called with each twin, under the same random numbers."""
        with _forked_random_state(self.free):
            free_loss = _backward(self.free, self.free_optimizer, loss_fn)
        projected_loss = _backward(self.projected, self.projected_optimizer, loss_fn)
        self._couple_()
        self.free_optimizer.step()
        self.projected_optimizer.step()
        self._project_()
        return TwinLosses(free_loss.item(), projected_loss.item())

    @torch.no_grad()
    def distance(self, *inputs: Any) -> float:
        """‖f(x) − f̃(x)‖/‖f(x)‖ between the outputs of the twins, in the modes that they are in."""
        with _forked_random_state(self.free):
            expected = self.free(*inputs)
        return ((self.projected(*inputs) - expected).norm() / expected.norm()).item()

    def _couple_(self) -> None:
        """Sets the rates, decay and gradients of the projected twin for the update to come."""
        norms = _on_host(_norms(self.free, self.coupled))
        rates = gradients = np.ones_like(norms)
        if self.mode == "exact":
            rates = gradients = self._radii / norms
        elif self.mode != "none":
            rates = _multipliers(self._radii, norms, self.mode, self._update)
        for weight, factor in zip(self._weights, gradients, strict=True):
            if weight.grad is not None:
                weight.grad.mul_(factor)
        rates = np.append(rates, rates[0] if self.mode == "global" else 1.0)  # the group of all others
        gradients = np.append(gradients, 1.0)
        groups = zip(self.free_optimizer.param_groups, self.projected_optimizer.param_groups, strict=True)
        for (free, projected), rate, factor in zip(groups, rates.tolist(), gradients.tolist(), strict=False):
            projected["lr"] = free["lr"] * rate
            if "weight_decay" in free:
                projected["weight_decay"] = free["weight_decay"] / factor

    @torch.no_grad()
    def _project_(self) -> None:
        for weight, radius in zip(self._weights, self._radii.tolist(), strict=True):
            weight.mul_(radius / weight_norm(weight))


def _coupled(model: nn.Module, names: Collection[str] | None) -> list[str]:
    if names is None:
        names = [row.name for row in weight_groups(model).of(Role.SCALE_INVARIANT, Role.NORMALISED)]
    coupled = list(matrix_like(model, names))
    if not coupled:
        raise ValueError(
            "no weight of this model is known to be scale-invariant, so there is nothing to couple; "
            "use nap.normalize_ first, or name the weights that norms follow with coupled=[...]"
        )
    for name in coupled:
        if not model.get_parameter(name).requires_grad:
            raise ValueError(
                f"{name} is frozen, so it has no update to couple; leave it out of coupled=[...]"
            )
    return coupled


def _backward(model: nn.Module, optimizer: Optimizer, loss_fn: Loss) -> Tensor:
    optimizer.zero_grad()
    loss = loss_fn(model)
    loss.backward()
    return loss.detach()


def _multipliers(reference: np.ndarray, norms: np.ndarray, mode: str, update: Update) -> np.ndarray:
    """(ρ/‖W‖)ᵖ of each weight, or of all as one: what Definition 1 asks of a run that stays at ρ."""
    if mode == "global":
        reference = np.full_like(reference, np.linalg.norm(reference))
        norms = np.linalg.norm(norms, axis=-1, keepdims=True)
    elif mode != "per-layer":
        raise ValueError(f"mode is {mode!r}, but it must be 'per-layer' or 'global'")
    return (reference / norms) ** update.power


def _norms(model: nn.Module, names: Collection[str]) -> Tensor:
    norms = [weight_norm(model.get_parameter(name)) for name in names]
    return torch.cat([norm.to(norms[0].device) for norm in norms])


def _first_norms(model: nn.Module, names: Collection[str], way_out: str) -> Tensor:
    norms = _norms(model, names)
    for name, norm in zip(names, norms.tolist(), strict=True):
        if norm == 0:
            raise ValueError(f"{name} has zero norm, so it has no direction to keep; {way_out}")
    return norms


def _on_host(norms: Tensor) -> np.ndarray:
    return norms.cpu().double().numpy()


def _forked_random_state(model: nn.Module) -> AbstractContextManager[None]:
    cuda = {parameter.device.index for parameter in model.parameters() if parameter.device.type == "cuda"}
    return torch.random.fork_rng(devices=sorted(cuda))
