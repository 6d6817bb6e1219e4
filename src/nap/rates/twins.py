"""A free network and its projected twin, side by side (§4.1).

With c = ρ/‖W‖, the projected weight is c·W and its gradient g/c. The rate lr·cᵖ of Definition 1 (see
`nap.rates.implicit`) is exact only for optimizers without memory. Momentum and Adam keep sums of past
gradients, each taken at another norm, and Adam's eps compares gradients with a constant. Feed
c·(g/c) = g instead: the state is then the free twin's, so is its update u, and lr·c gives
c·W − lr·c·u = c·(W − lr·u), the free twin's next weight up to its norm. Weight decay λ, inside or
outside of the gradient, is exact as λ/c.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nap.diagnostics.probing import forked_random_state
from nap.projection.sphere import norms_of, project_tensors_
from nap.rates.implicit import norms_by_name, on_host, rate_multipliers, usable_norms
from nap.rates.learning_rate import Update, matrix_like, per_weight_groups, update_of
from nap.weights import Role, weight_groups

Loss = Callable[[nn.Module], Tensor]
TwinMode = Literal["exact", "per-layer", "global", "none"]


class TwinLosses(NamedTuple):
    """The losses of both twins before one update."""

    free: float
    projected: float

    @property
    def gap(self) -> float:
        return abs(self.free - self.projected)


class TwinPair:
    """A network and its projected twin, trained from one initialisation on the same data (§4.1).

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
        self._radii = on_host(usable_norms(model, self.coupled, "leave it out of coupled=[...]"))
        self._weights = [self.projected.get_parameter(name) for name in self.coupled]
        self._spheres = [norms_of(weight) for weight in self._weights]
        for weight, group in zip(self._weights, self.projected_optimizer.param_groups, strict=False):
            if len(group["params"]) != 1 or group["params"][0] is not weight:
                raise ValueError("make_optimizer must keep the parameter groups as it is given them")

    def step(self, loss_fn: Loss) -> TwinLosses:
        """One update of both. `loss_fn` is called with each twin, under the same random numbers."""
        with forked_random_state(self.free):
            free_loss = _backward(self.free, self.free_optimizer, loss_fn)
        projected_loss = _backward(self.projected, self.projected_optimizer, loss_fn)
        self._couple_()
        self.free_optimizer.step()
        self.projected_optimizer.step()
        project_tensors_(self._weights, self._spheres)
        return TwinLosses(free_loss.item(), projected_loss.item())

    @torch.no_grad()
    def distance(self, *inputs: Any) -> float:
        """‖f(x) − f̃(x)‖/‖f(x)‖ between the outputs of the twins, in the modes that they are in."""
        with forked_random_state(self.free):
            expected = self.free(*inputs)
        return ((self.projected(*inputs) - expected).norm() / expected.norm()).item()

    def _couple_(self) -> None:
        """Set the rates, decay and gradients of the projected twin before its update."""
        norms = on_host(norms_by_name(self.free, self.coupled))
        rates = gradients = np.ones_like(norms)
        if self.mode == "exact":
            rates = gradients = self._radii / norms
        elif self.mode != "none":
            rates = rate_multipliers(self._radii, norms, self.mode, self._update)
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
