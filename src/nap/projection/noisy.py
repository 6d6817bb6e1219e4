"""Noisy layers, μ(x) + σ(x ⊙ ε) ⊙ ε': one radius for μ and σ, so that noise can shrink against the means.

What normalises such a layer cancels the common scale of both, ‖(μ, σ)‖ = √(‖μ‖² + ‖σ‖²), and not the scale
of either. With a radius each, the share of the noise is fixed for good: an agent could not learn to explore
less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nap.projection.plan import ProjectionPlan
from nap.projection.sphere import factors_to, is_sharded, norms_like, norms_over, replicated_like
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


def norms_together(radius: Tensor, weights: Iterable[Tensor]) -> Tensor:
    """The joint norms of several weights of one shape, in the shape of `radius`."""
    return torch.stack([norms_like(radius, weight) for weight in weights]).square().sum(0).sqrt()


@torch.no_grad()
def project_together_(
    groups: Sequence[Sequence[Tensor]], radii: Sequence[Tensor], *, when: Tensor | None = None
) -> None:
    """(μ, σ) ← ρ·(μ, σ)/‖(μ, σ)‖ in place, for each group of weights of one shape; see `project_tensors_`.

    >>> mean, noise = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    >>> project_together_([(mean, noise)], [torch.tensor([[1.0]])])
    >>> mean, noise
    (tensor([[0.6000, 0.0000]]), tensor([[0.0000, 0.8000]]))
    """
    whole: dict[Any, list[tuple[Sequence[Tensor], Tensor]]] = defaultdict(list)
    for weights, radius in zip(groups, radii, strict=True):
        if radius.numel() == 1 and not any(map(is_sharded, weights)):
            whole[weights[0].device, weights[0].dtype, len(weights)].append((weights, radius))
            continue
        factor = factors_to(radius, norms_together(radius, weights), when)
        for weight in weights:
            weight.mul_(replicated_like(factor, weight))
    for (device, dtype, size), alike in whole.items():
        flat = [weight for weights, _ in alike for weight in weights]
        if device.type == "cpu":
            norms = torch.cat([norms_over(w, range(w.ndim)).reshape(1) for w in flat])
        else:
            wide = torch.promote_types(dtype, torch.float32)
            norms = torch.stack(torch._foreach_norm(flat, 2, dtype=wide))
        together = norms.view(-1, size).square().sum(1).sqrt()
        factors = factors_to(torch.cat([radius.reshape(1) for _, radius in alike]), together, when)
        of_each = factors.unsqueeze(1).expand(-1, size).reshape(-1, 1)
        torch._foreach_mul_(flat, list(of_each.unbind()))
