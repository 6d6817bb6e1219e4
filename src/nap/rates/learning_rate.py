"""Effective learning rates (Definition 1), measured on a model and its optimizer.

A weight that a norm follows can change its direction only. So its step counts relative to its norm:
the rate that matters is lr/‖W‖² where the optimizer adds gradients, which shrink as ‖W‖ grows, and
lr/‖W‖ where it adds steps of a fixed length.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection
from enum import StrEnum
from itertools import product
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nap.projection.hooks import relative_lengths
from nap.projection.sphere import norms_of
from nap.weights import WEIGHT_ROLES, Weight, weight_groups

Number = TypeVar("Number", float, Tensor)


class Update(StrEnum):
    """What an optimizer adds to the weights: the two cases of Definition 1, and relative steps."""

    RAW = "raw"  # the gradient, or a running sum of gradients
    NORMALISED = "normalised"  # steps whose length does not depend on that of the gradient
    RELATIVE = "relative"  # steps in units of the weight's norm: `Projector(model, update="relative")`

    @property
    def power(self) -> int:
        """The power of ‖θ‖ by which the learning rate is divided."""
        return {Update.RAW: 2, Update.NORMALISED: 1, Update.RELATIVE: 0}[self]


# By class name, because the same algorithm comes from many packages. Subclasses inherit the answer with the
# step; one that has a step of its own may rescale it, and is asked about.
_RAW = {"SGD"}
_NORMALISED = {
    *("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam", "RMSprop", "Adagrad", "Adadelta"),
    *("Lion", "Signum", "Muon"),
}
_BEYOND_DEFINITION_1 = {
    "LBFGS": "a quasi-Newton step grows with the weights",
    "Rprop": "its lr sets the first step only",
    "Adafactor": "its steps are proportional to the weights",
    "ASGD": "its step size is in its state, not in its lr",
}


def effective_lr(lr: Number, norm: Number, *, update: Update) -> Number:
    """η/‖θ‖² for raw gradients, η/‖θ‖ for normalised updates (Definition 1), η for relative ones.

    >>> effective_lr(0.1, 2.0, update=Update.RAW), effective_lr(0.1, 2.0, update=Update.NORMALISED)
    (0.025, 0.05)
    """
    return lr / norm**update.power


def update_of(optimizer: Optimizer) -> Update:
    """Which case of Definition 1 an optimizer is, by its class or by the known class whose step it takes."""
    for cls in type(optimizer).__mro__:
        kind = cls.__name__
        known = kind in _RAW or kind in _NORMALISED
        if known and _step_of(type(optimizer)) is not _step_of(cls):
            raise ValueError(
                f"{type(optimizer).__name__} extends {kind} with a step of its own, which may rescale what "
                f"{kind} adds to the weights; say what it adds: update='raw' (gradients, also with momentum) "
                f"or update='normalised' (steps whose length does not depend on that of the gradient)"
            )
        if known:
            return Update.RAW if kind in _RAW else Update.NORMALISED
        if kind in _BEYOND_DEFINITION_1:
            raise ValueError(
                f"{kind} has no effective learning rate by Definition 1: {_BEYOND_DEFINITION_1[kind]}; "
                f"pass update= to read its lr as if it had"
            )
    raise ValueError(
        f"{type(optimizer).__name__} is not an optimizer known here; say what it adds to the weights: "
        f"update='raw' (gradients, also with momentum) or update='normalised' (like Adam or sign steps)"
    )


def _step_of(kind: type) -> Any:
    """The class's step function, without the wrapper of torch."""
    return inspect.unwrap(kind.step)  # type: ignore[attr-defined]


def effective_learning_rates(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    update: Update | str | None = None,
    weights: Collection[str] | None = None,
) -> dict[str, float]:
    """The rate of each matrix-like weight that `optimizer` holds, by Definition 1.

    Definition 1 is about weights that a norm follows. Others (the output layer, or any weight of a
    model without norms) are listed with the same formula, though for them the rate says nothing of
    the function: choose with `weights`, such as
    `[w.name for w in nap.weight_groups(model).of(Role.SCALE_INVARIANT)]`. Weights stacked in one
    tensor (experts) have a rate each, named `name[i]`. A weight of zeros has an infinite rate. Where an
    attached `Projector(model, update="relative")` says how long steps are, the rate is lr·ρ/‖W‖, so lr on
    the sphere, whatever the optimizer. Costs one copy from the device, however many weights there are.

    >>> model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4))
    >>> _ = nn.init.eye_(model[0].weight)
    >>> effective_learning_rates(model, torch.optim.SGD(model.parameters(), lr=0.1))
    {'0.weight': 0.025}
    """
    read = _read(model, optimizer, weights)
    kind = _kind(optimizer, update, [row.length for row in read])
    return {row.name: _rate(row, kind) for row in read}


def global_effective_learning_rate(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    update: Update | str | None = None,
    weights: Collection[str] | None = None,
) -> float:
    """The rate of all those weights taken as one vector θ, ‖θ‖² = Σ‖W‖²: the global rate of §4.1.

    >>> model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4))
    >>> _ = nn.init.eye_(model[0].weight)
    >>> global_effective_learning_rate(model, torch.optim.Adam(model.parameters(), lr=0.1))
    0.05
    """
    names, norms, lrs, lengths = zip(*_read(model, optimizer, weights), strict=True)
    kind = _kind(optimizer, update, lengths)
    if None in lengths and len(set(lengths)) > 1:
        own = [name for name, length in zip(names, lengths, strict=True) if length is None]
        raise ValueError(
            f"{own} take the steps of {type(optimizer).__name__} and the other weights relative ones, so no "
            "single rate is global; use effective_learning_rates, or weights= to choose those of one kind"
        )
    if len(set(lrs)) > 1:
        raise ValueError(
            f"the weights {list(names)} have the learning rates {list(lrs)}, so no single one is global; "
            f"use effective_learning_rates, or weights= to choose those of one rate"
        )
    length = None if None in lengths else math.hypot(*lengths)
    return _rate(_Read("", math.hypot(*norms), lrs[0], length), kind)


def per_weight_groups(model: nn.Module, weights: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer, named: one for each matrix-like weight, one for all the rest.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))
    >>> optimizer = torch.optim.Adam(per_weight_groups(model))
    >>> [group["param_names"] for group in optimizer.param_groups]
    [['0.weight'], ['0.bias', '1.weight', '1.bias']]
    """
    chosen = set(matrix_like(model, weights))
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [{"params": [pair]} for pair in named if pair[0] in chosen]
    rest = [pair for pair in named if pair[0] not in chosen]
    return groups + ([{"params": rest}] if rest else [])


def matrix_like(model: nn.Module, weights: Collection[str] | None = None) -> dict[str, Weight]:
    """The weights with an effective rate: all but norms' parameters and biases, or those named."""
    table = weight_groups(model)
    if weights is None:
        return {row.name: row for row in table.of(*WEIGHT_ROLES)}
    if unknown := [name for name in weights if name not in table]:
        raise ValueError(f"the model has no parameter {unknown[0]!r}; its names are {list(table)}")
    return {name: row for name, row in table.items() if name in weights}


class _Read(NamedTuple):
    """A weight's norms and rate; `length` is that of a relative step at rate 1."""

    name: str
    norm: float
    lr: float
    length: float | None


def _kind(optimizer: Optimizer, update: Update | str | None, lengths: Collection[float | None]) -> Update:
    """The kind of update; taken from the optimizer if any weight takes its steps unchanged."""
    if update is None:
        return update_of(optimizer) if None in lengths else Update.RELATIVE
    return Update(update)


def _rate(row: _Read, kind: Update) -> float:
    if not row.norm:
        return math.inf
    return (
        effective_lr(row.lr, row.norm, update=kind) if row.length is None else row.lr * row.length / row.norm
    )


def _read(model: nn.Module, optimizer: Optimizer, weights: Collection[str] | None) -> list[_Read]:
    """All weights of the optimizer, in one copy from the device."""
    lr_of = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    parameters = dict(model.named_parameters())
    rows = [row for row in matrix_like(model, weights).values() if id(parameters[row.name]) in lr_of]
    if not rows:
        raise ValueError(
            f"{type(optimizer).__name__} holds no weight of this {type(model).__name__}; "
            f"make it from the parameters of this very model"
        )
    norms = [norms_of(parameters[row.name], stacked=row.stacked).reshape(-1) for row in rows]
    lrs = [lr_of[id(parameters[row.name])] for row in rows]
    steps = relative_lengths(optimizer)
    found = [steps.get(id(parameters[row.name])) for row in rows]
    lengths = [
        None if length is None else length.reshape(len(norm), -1).norm(dim=1)
        for norm, length in zip(norms, found, strict=True)
    ]
    parts = norms + [length for length in lengths if length is not None]
    parts += [lr.detach().reshape(1) for lr in lrs if isinstance(lr, Tensor)]
    flat = torch.cat([part.to(norms[0].device) for part in parts]).cpu()
    on_host = iter(flat.split([len(part) for part in parts]))
    norm_values = [next(on_host).tolist() for _ in norms]
    length_values = [
        [None] * len(norm) if length is None else next(on_host).tolist()
        for norm, length in zip(norms, lengths, strict=True)
    ]
    lr_values = [next(on_host).item() if isinstance(lr, Tensor) else lr for lr in lrs]
    return [
        _Read(name, norm, lr, length)
        for row, values, long, lr in zip(rows, norm_values, length_values, lr_values, strict=True)
        for name, norm, length in zip(_names(row, parameters[row.name].shape), values, long, strict=True)
    ]


def _names(row: Weight, shape: torch.Size) -> list[str]:
    places = product(*map(range, shape[: row.stacked]))
    return [f"{row.name}{list(place)}" if place else row.name for place in places]
