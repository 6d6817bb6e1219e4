"""Noisy layers, μ(x) + σ(x ⊙ ε) ⊙ ε': one radius for μ and σ, so that noise can shrink against the means.

What normalises such a layer cancels the common scale of both, ‖(μ, σ)‖ = √(‖μ‖² + ‖σ‖²), and not the scale
of either. With a radius each, the share of the noise is fixed for good: an agent could not learn to explore
less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from nap.projection.plan import ProjectionPlan
from nap.projection.sphere import factors_to
from nap.projection.steps import Pairs, in_one, norms_together, scale_
from nap.weights import WeightTable

Two = tuple[str, str]  # names of a noisy layer's means and of its noise


def with_noise(
    plan: ProjectionPlan, table: WeightTable, parameters: Mapping[str, Tensor], policy: str
) -> tuple[ProjectionPlan, list[Two]]:
    """The plan under a policy for noisy layers, and the pairs that share a radius.

    A half that is left free, or frozen without the other, leaves the other with a radius of its own.
    """
    actions = {row.name: row.action for row in plan.rows}
    pairs = [(w.beside, w.name) for w in table.values() if w.part == "noise" and w.beside]
    pairs = [pair for pair in pairs if all(actions.get(name) == "project" for name in pair)]
    rows = {row.name: row for row in plan.rows}
    if policy == "free":
        rows |= {name: replace(rows[name], action="free", reason="noise='free'") for _, name in pairs}
    if policy != "joint":
        return replace(plan, rows=tuple(rows.values())), []
    pairs = [(a, b) for a, b in pairs if parameters[a].requires_grad == parameters[b].requires_grad]
    for mean, noise in pairs:
        rows[mean] = replace(rows[mean], reason=f"one norm with {noise}, which may shrink beside it")
        rows[noise] = replace(rows[noise], reason=f"one norm with {mean}, beside which it may shrink")
    return replace(plan, rows=tuple(rows.values())), pairs


def shared(radii: Mapping[str, Tensor], pairs: Iterable[Two]) -> dict[str, Tensor]:
    """The shared radius √(ρ_μ² + ρ_σ²), under both names of each pair."""
    joined = {pair: torch.hypot(radii[pair[0]], radii[pair[1]]) for pair in pairs}
    return {name: radius for pair, radius in joined.items() for name in pair}


def places(names: Sequence[str], pairs: Iterable[Two]) -> Pairs:
    """The positions of pairs in a list of names; only those with both halves in it."""
    place = {name: number for number, name in enumerate(names)}
    return [(place[one], place[other]) for one, other in pairs if one in place and other in place]


@torch.no_grad()
def project_together_(
    pairs: Sequence[tuple[Tensor, Tensor]], radii: Sequence[Tensor], *, when: Tensor | None = None
) -> None:
    """(μ, σ) ← ρ·(μ, σ)/‖(μ, σ)‖ in place, for each pair of weights of one shape; see `project_tensors_`.

    >>> mean, noise = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    >>> project_together_([(mean, noise)], [torch.tensor([[1.0]])])
    >>> mean, noise
    (tensor([[0.6000, 0.0000]]), tensor([[0.0000, 0.8000]]))
    """
    weights = [weight for pair in pairs for weight in pair]
    both = [radius for radius in radii for _ in range(2)]
    norms = norms_together(weights, both, [(2 * k, 2 * k + 1) for k in range(len(pairs))])
    scale_(weights, both, in_one(lambda radius, norm: factors_to(radius, norm, when), both, norms))
