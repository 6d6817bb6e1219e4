"""What becomes of the weights whose norm is a choice: the output layer, look-up tables, residual branches.

Nothing normalises an output layer, and a table or a branch only inside a sum. Kept at its norm, one that
starts small stays small beside the rest of the network. So a `Projector` has a policy for each of the three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from nap.weights import Role, Weight, WeightTable

Choice = Literal["project", "grow", "free"]
Which = Literal["output", "embeddings", "branches"]

# Sizes are in units of the fan-in radius, where entries have an RMS of 1/√fan_in. PyTorch's Linear starts at
# 0.58. On digits with random labels (widths 32 and 256, 2500 updates of Adam) an output layer projected at a
# quarter of that ended with 0.2 to 0.3 nats more loss than one at 0.58, at an eighth with 0.4 to 0.6.
SMALL_OUTPUT = 0.14
NEAR_ZERO = 0.03
SMALL_BRANCH = 0.5  # GPT-2's start at about 0.11 (attention) and 0.23 (hidden layer) of it


@dataclass(frozen=True)
class Policies:
    """The choice for output layer, embeddings and branches; None is the default.

    project: kept at the norm that it has at the start. grow: free up to its fan-in radius, and kept from
    growing beyond (one that starts there or beyond is projected). free: left alone.
    """

    output: Choice | None = None
    embeddings: Choice | None = None
    branches: Choice | None = None

    def of(self, which: Which) -> Choice | None:
        """The choice under one of these names."""
        return getattr(self, which)

    def chosen(self) -> dict[str, Choice]:
        """The choices that are not None."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name))}


def which(row: Weight) -> Which | None:
    """The name of the policy for this weight, if there is one."""
    if row.role is Role.OUTPUT:
        return "output"
    if row.role is Role.EMBEDDING:
        return "embeddings"
    return "branches" if row.place == "branch" and row.role in (Role.JOINT, Role.CHAIN) else None


def fan_in_radius(row: Weight, parameter: Tensor, norms: Tensor) -> Tensor:
    """The norms at which entries have an RMS of 1/√fan_in, in the shape of `norms`.

    Of a table in which rows are looked up, RMS 1: what is looked up is as large as what a layer makes at
    its fan-in radius. A table that is also the output layer counts as that.

    >>> weight = torch.empty(16, 4)
    >>> fan_in_radius(Weight("head", Role.OUTPUT), weight, torch.empty(1, 1))
    tensor([[4.]])
    """
    entries = parameter.numel() / norms.numel()  # of each norm
    rows = math.prod(parameter.shape[axis] for axis in {*range(row.stacked), max(row.out_axis, row.stacked)})
    fan_in = 1.0 if row.role is Role.EMBEDDING else parameter.numel() / rows
    return torch.full_like(norms, math.sqrt(entries / fan_in))


@dataclass(frozen=True)
class Sizes:
    """The initial norms of the weights, and their fan-in radii."""

    norms: Mapping[str, Tensor]
    full: Mapping[str, Tensor]

    def size(self, name: str) -> float:
        """The norm of a weight in units of its fan-in radius."""
        return (self.norms[name].norm() / self.full[name].norm()).item()

    def any_zero(self, name: str) -> bool:
        """Whether one of its norms is exactly zero."""
        return not bool((self.norms[name] > 0).all() | ~self.norms[name].isfinite().all())

    def is_full(self, name: str) -> bool:
        """Whether all its norms are at their fan-in radius or beyond."""
        return bool((self.norms[name] >= self.full[name]).all())

    def radius(self, name: str, action: str) -> Tensor:
        """The radius: the initial norm, or the fan-in radius for a weight that may grow."""
        norms = self.norms[name]
        return torch.maximum(norms, self.full[name]) if action == "grow" else norms


def treat(row: Weight, sizes: Sizes, policies: Policies, table: WeightTable) -> tuple[Choice, str | None]:
    """The action for a weight and its reason; None if the role is the reason."""
    name, kind = row.name, which(row)
    choice, why = ("project", None) if kind is None else _chosen(row, kind, sizes, policies, table)
    if choice == "free":
        return "free", why
    if sizes.any_zero(name):
        return "grow", "all zeros, no direction to keep: free up to its fan-in radius"
    if choice == "grow" and sizes.is_full(name):
        return "project", "starts at its fan-in radius or beyond"
    if choice == "grow":
        share = f"starts at {sizes.size(name):.2g} of its fan-in radius, free up to there"
        return "grow", f"{share} ({why})" if why else share
    return "project", why


def _chosen(
    row: Weight, kind: Which, sizes: Sizes, policies: Policies, table: WeightTable
) -> tuple[Choice, str | None]:
    """The caller's choice, or the default."""
    choice = policies.of(kind)
    if choice is not None:
        return choice, None if choice == "project" else f"{kind}={choice!r}"
    if has_gain(row, table):
        return "project", "its gain sets the scale"
    if kind != "branches" and learns_tokens(table):
        return "free", f"{kind}='free', the default where tokens are looked up"
    if kind == "branches" and sizes.size(row.name) < SMALL_BRANCH:
        return "grow", None
    if kind == "output" and is_small_output(row.name, sizes, table):
        return "grow", None
    return "project", None


def learns_tokens(table: WeightTable) -> bool:
    """Whether the model looks up its inputs in a table, as language models do."""
    return any(row.place == "tokens" for row in table.values())


def has_gain(row: Weight, table: WeightTable) -> bool:
    """Whether step 1 put a gain in front of the layer that owns this weight."""
    gained = {gain.name.rpartition(".")[0].rpartition(".")[0] for gain in table.of(Role.GAIN)}
    return row.name.rpartition(".")[0] in gained


def is_small_output(name: str, sizes: Sizes, table: WeightTable) -> bool:
    """Whether an output layer is near zero, or small where all of the model's are.

    One that is small beside others may be meant so: σ of a noisy layer beside its μ.
    """
    outputs = [sizes.size(row.name) for row in table.of(Role.OUTPUT) if row.name in sizes.norms]
    return sizes.size(name) < NEAR_ZERO or max(outputs) < SMALL_OUTPUT
