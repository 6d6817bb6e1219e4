"""Relative steps: how far an update moves each weight, in units of its norm.

Layers of one network differ in this, often ten-fold, though they share a learning rate: the rate that matters
is the effective one (Definition 1), and norms differ. Under NaP norms stay, so one choice of rates for each
layer makes the steps equal for good.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nap.projection.hooks import relative_lengths, unwrapped
from nap.projection.plan import ProjectionPlan
from nap.projection.sphere import norms_of
from nap.rates.learning_rate import Update, effective_learning_rates, effective_lr, matrix_like, update_of
from nap.sharded import reshard_, sharded_parts
from nap.weights import Role, Weight


def relative_steps(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    update: Update | str | None = None,
    weights: Collection[str] | None = None,
) -> dict[str, float]:
    """lr / RMS(W) of each weight: its relative step where every entry moves by lr, as Adam's nearly do.

    For optimizers that add gradients it is the effective rate lr/‖W‖², to which the relative step is
    proportional; where an attached `Projector(model, update="relative")` sets the steps it is lr·ρ/‖W‖, so lr
    on the sphere. What a run really does, `UpdateRatios` measures.

    >>> model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4))
    >>> _ = nn.init.constant_(model[0].weight, 0.5)
    >>> relative_steps(model, torch.optim.Adam(model.parameters(), lr=0.1))
    {'0.weight': 0.2}
    """
    rates = effective_learning_rates(model, optimizer, update=update, weights=weights)
    held = {name.partition("[")[0] for name in rates}
    parameters, given = dict(model.named_parameters()), relative_lengths(optimizer)
    table = matrix_like(model, weights)
    rows = {n: row for n, row in table.items() if n in held and id(parameters[n]) not in given}
    if not rows or _kind(update, optimizer) is not Update.NORMALISED:
        return rates
    entries = {name: _entries(row, model) for name, row in rows.items()}
    return {name: rate * math.sqrt(entries.get(name.partition("[")[0], 1.0)) for name, rate in rates.items()}


def equal_step_groups(
    model: nn.Module,
    lr: float,
    *,
    step: float | None = None,
    update: Update | str = Update.NORMALISED,
    plan: ProjectionPlan | None = None,
    factors: Mapping[Role | str, float] | None = None,
    weights: Collection[str] | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer in which all weights take the same relative step.

    That step is `step`, or the geometric mean of those that `lr` gives, so a good `lr` stays one. Each weight
    has a group with its own rate; all other parameters share a group at `lr`. Schedules multiply each rate,
    so the steps stay equal. Where norms grow they do not: use it with a `Projector`, and hand over its plan,
    so that a weight that may grow, a zero-initialised branch for example, counts as one that has.

    Args:
        lr: the learning rate that one group would have, and that all other parameters get.
        step: the relative step itself, ‖ΔW‖/‖W‖ of one update. Exact with "relative"; with "normalised" where
            every entry moves by the rate, as sign steps do and Adam's nearly.
        update: what the optimizer adds: "normalised" (Adam, sign steps), "raw" (gradients), or "relative"
            under a `Projector(model, update="relative")`: then the rate is the step, and only weights that
            the plan has a radius for get one.
        plan: `projector.plan`, whose radii count instead of the norms that weights have now.
        factors: the step of a role (`nap.weight_groups`) relative to the others': {"output": 0.3}.
        weights: names of the weights to balance; the others stay at `lr`.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 2))
    >>> with torch.no_grad():
    ...     _ = model[0].weight.fill_(1.0), model[3].weight.fill_(4.0)
    >>> optimizer = torch.optim.Adam(equal_step_groups(model, 0.1))
    >>> [(group["param_names"][0], round(group["lr"], 3)) for group in optimizer.param_groups]
    [('0.weight', 0.05), ('3.weight', 0.2), ('0.bias', 0.1)]
    >>> {name: round(step, 3) for name, step in relative_steps(model, optimizer).items()}
    {'0.weight': 0.05, '3.weight': 0.05}
    """
    if not (isinstance(lr, float | int) and 0 < lr < math.inf):
        raise ValueError(f"lr is {lr!r}, but a learning rate is a number, finite and above 0")
    if step is not None and not (isinstance(step, float | int) and 0 < step < 1):
        raise ValueError(f"step is {step!r}, but it is a share of a weight's norm, above 0 and below 1")
    kind, wanted = Update(update), _factors(factors or {})
    if step is not None and kind is Update.RAW:
        raise ValueError(
            f"step={step} cannot be had with update='raw': how far gradients move a weight depends on their "
            "size; take Projector(model, update='relative') and update='relative', or leave step out"
        )
    parameters = dict(model.named_parameters())
    rows = {n: row for n, row in matrix_like(model, weights).items() if parameters[n].requires_grad}
    radii = {} if plan is None else {row.name: row.radius for row in plan.rows}
    if kind is Update.RELATIVE:
        if plan is None:
            raise ValueError(
                "update='relative' needs plan=projector.plan, which says what has a radius and takes such "
                "steps; all else moves as its optimizer moves it"
            )
        rows = {name: row for name, row in rows.items() if radii.get(name) is not None}
    if not rows:
        raise ValueError(
            f"this {type(model).__name__} has no trainable weight to balance; name some that it has"
        )
    per_rate = {n: _step_per_rate(row, parameters[n], radii.get(n), kind) for n, row in rows.items()}
    mean = math.exp(sum(map(math.log, per_rate.values())) / len(per_rate))
    common = lr * mean if step is None else step
    rates = {name: common / per_rate[name] * wanted.get(row.role, 1.0) for name, row in rows.items()}
    groups = [{"params": [(name, parameters[name])], "lr": rate} for name, rate in rates.items()]
    rest = [(n, p) for n, p in parameters.items() if n not in rates and p.requires_grad]
    return groups + ([{"params": rest, "lr": float(lr)}] if rest else [])


class UpdateRatios:
    """Measures ‖ΔW‖/‖W‖ of each weight over single updates: the update-to-weight ratio that many logs have.

    Attach it after a `Projector`, so that the projection belongs to the update. A measured update costs a
    copy of the weights; the others cost nothing.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = nn.init.constant_(model.weight, 1.0)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> ratios = UpdateRatios(model, every=1).attach(optimizer)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> {name: round(ratio, 6) for name, ratio in ratios.last.items()}
    {'weight': 0.1}
    """

    def __init__(self, model: nn.Module, *, every: int = 100, weights: Collection[str] | None = None):
        if not (isinstance(every, int) and every >= 1):
            raise ValueError(f"every is {every!r}; it counts updates, so it is a whole number, at least 1")
        self._model, self._every = model, every
        self._rows = matrix_like(model, weights)
        self._steps = 0
        self._before: dict[str, Tensor] = {}
        self._hooks: list[Any] = []
        self.last: dict[str, float] = {}
        """‖ΔW‖/‖W‖ of the update that was measured last; {} before the first."""
        self.mean: dict[str, float] = {}
        """the mean of all that were measured since `attach`"""
        self._measured = 0

    def attach(self, optimizer: Any) -> Self:
        """Measure the first update of this optimizer from now on, and every `every`-th after it."""
        self.mean, self._measured = {}, 0
        inner = unwrapped(optimizer)
        held = {id(parameter) for group in inner.param_groups for parameter in group["params"]}
        if not any(id(p) in held for n, p in self._model.named_parameters() if n in self._rows):
            raise ValueError(
                f"{type(inner).__name__} holds no weight of this {type(self._model).__name__}; make it from "
                "the parameters of this very model"
            )
        self._hooks += [
            inner.register_step_pre_hook(torch.compiler.disable(self._note)),
            inner.register_step_post_hook(torch.compiler.disable(self._measure)),
        ]
        return self

    def detach(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _weights(self) -> dict[str, Tensor]:
        reshard_(sharded_parts(self._model))
        return {name: self._model.get_parameter(name).detach() for name in self._rows}

    def _note(self, *_: Any) -> None:
        if self._steps % self._every == 0:
            self._before = {name: weight.clone() for name, weight in self._weights().items()}

    def _measure(self, *_: Any) -> None:
        if self._before:
            now = self._weights()
            moved = {name: norms_of(now[name] - was) / norms_of(was) for name, was in self._before.items()}
            self.last = {name: ratio.item() for name, ratio in moved.items()}
            self._measured += 1
            known = self.mean or self.last
            self.mean = {n: known[n] + (r - known[n]) / self._measured for n, r in self.last.items()}
            self._before = {}
        self._steps += 1


def _kind(update: Update | str | None, optimizer: Optimizer) -> Update:
    return update_of(optimizer) if update is None else Update(update)


def _entries(row: Weight, model: nn.Module) -> float:
    """The number of entries behind each norm of a weight: those of one expert, if several are stacked."""
    shape = model.get_parameter(row.name).shape
    return math.prod(shape[row.stacked :])


def _step_per_rate(row: Weight, parameter: Tensor, radius: float | None, kind: Update) -> float:
    """The relative step of a weight at a learning rate of 1; of one of them, where several are stacked."""
    norms = norms_of(parameter, stacked=row.stacked)
    size = norms.norm().item() if radius is None else radius
    if size == 0:
        raise ValueError(
            f"{row.name} is all zeros, so a step relative to its norm is not defined; hand over the plan "
            f"of a Projector that lets it grow (plan=projector.plan), or leave it out with weights="
        )
    rate = effective_lr(1.0, size / math.sqrt(norms.numel()), update=kind)
    return rate * math.sqrt(parameter.numel() / norms.numel()) if kind is Update.NORMALISED else rate


def _factors(factors: Mapping[Role | str, float]) -> dict[Role, float]:
    found = {}
    for role, factor in factors.items():
        if role not in list(Role):
            raise ValueError(f"factors names {role!r}, which is no role; there are {', '.join(Role)}")
        if not (isinstance(factor, float | int) and 0 < factor < math.inf):
            raise ValueError(f"the factor of {role} is {factor!r}; it is a number, finite and above 0")
        found[Role(role)] = float(factor)
    return found
