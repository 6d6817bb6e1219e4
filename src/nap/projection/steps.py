"""What becomes of an optimizer's step beside its projection, over tensors: its length, and a soft radius.

    relative    W ← W₀ + η·ρ·u/‖u‖, u = W − W₀      as long as the rate says, in units of the radius
    brake       ‖W‖ ← (1 − b)·‖W‖ + b·n             n: the norm nearest to ‖W‖ between ρ and ‖W₀‖

W₀ is the weight before the step and W the one after it. Projected, the first is W ← ρ·norm(W₀ + η·ρ·norm(u)):
the direction is the optimizer's, the length is not. With b = 1 the second is projection, with b = 0 nothing.
Both go by the shape of the radius, as `sphere` does: a norm for a weight, row or expert.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nap.projection.sphere import (
    factors_to,
    grouped_like,
    is_sharded,
    norms_like,
    norms_of_whole,
    replicated_like,
)

Rate = float | Tensor
Pairs = Sequence[tuple[int, int]]


@torch.no_grad()
def relative_(
    weights: Sequence[Tensor],
    before: Sequence[Tensor],
    radii: Sequence[Tensor],
    rates: Sequence[Rate],
    *,
    together: Pairs = (),
) -> None:
    """W ← W₀ + η·ρ·u/‖u‖ in place, u = W − W₀, without waiting for the device.

    An update that is zero has no direction, and moves nothing; one that is not finite stays as it is.

    Args:
        before: the weights as they were before the step; nothing else is kept of it.
        rates: η of each, a number or a tensor on the device.
        together: positions of weights whose updates count as one: means and noise of a noisy layer.

    >>> weight, before = torch.tensor([[3.0, 4.5]]), torch.tensor([[3.0, 4.0]])
    >>> relative_([weight], [before], [torch.tensor([[5.0]])], [0.1])
    >>> weight
    tensor([[3.0000, 4.5000]])
    >>> relative_([weight], [before], [torch.tensor([[5.0]])], [0.2])
    >>> weight
    tensor([[3., 5.]])
    """
    for pairs in _foreach(weights, before):
        torch._foreach_sub_(*pairs)
    norms = norms_together(weights, radii, together)
    rated = [rate * radius for rate, radius in zip(rates, radii, strict=True)]
    scale_(weights, radii, in_one(factors_to, rated, norms))
    for pairs in _foreach(weights, before):
        torch._foreach_add_(*pairs)


@torch.no_grad()
def brake_(
    weights: Sequence[Tensor],
    before: Sequence[Tensor],
    radii: Sequence[Tensor],
    growing: Sequence[bool],
    brake: float,
    *,
    together: Pairs = (),
    when: Tensor | None = None,
) -> list[Tensor]:
    """‖W‖ ← (1 − b)·‖W‖ + b·n in place, n the norm nearest to ‖W‖ between ρ and ‖W₀‖; see `braked`.

    Returns the norms as they were.

    Args:
        before: norms of the weights before the step, in the shape of the radii.
        growing: which of them are free below their radius.
        when: a truth value on the device; where it is False nothing changes.
    """
    norms = norms_together(weights, radii, together)
    lowest = [torch.zeros_like(r) if grows else r for r, grows in zip(radii, growing, strict=True)]

    def factors(norm: Tensor, start: Tensor, radius: Tensor, low: Tensor) -> Tensor:
        return factors_to(braked(norm, start, radius, brake, lowest=low), norm, when)

    scale_(weights, radii, in_one(factors, norms, before, radii, lowest))
    return norms


def braked(
    norm: Tensor, before: Tensor, radius: Tensor, brake: float, *, lowest: Tensor | None = None
) -> Tensor:
    """The norm that a brake leaves of `norm`: moves away from the radius are damped, those towards it free.

    >>> norm, radius = torch.tensor([1.2, 1.2, 1.2, 0.9]), torch.ones(4)
    >>> braked(norm, torch.tensor([1.0, 1.1, 1.5, 1.0]), radius, 0.5)
    tensor([1.1000, 1.1500, 1.2000, 0.9500])
    """
    low = torch.minimum(before, radius if lowest is None else lowest)
    nearest = torch.minimum(torch.maximum(norm, low), torch.maximum(before, radius))
    return torch.lerp(norm, nearest, brake)


def norms_together(weights: Sequence[Tensor], radii: Sequence[Tensor], together: Pairs = ()) -> list[Tensor]:
    """The norms of each weight in the shape of its radius; a pair shares √(a² + b²)."""
    by_place: dict[int, Tensor] = {}
    whole: dict[Any, list[int]] = defaultdict(list)
    for place, (weight, radius) in enumerate(zip(weights, radii, strict=True)):
        if radius.numel() == 1 and not is_sharded(weight):
            whole[weight.device, weight.dtype].append(place)
        else:
            by_place[place] = norms_like(radius, weight)
    for places in whole.values():
        norms = norms_of_whole([weights[place] for place in places])
        by_place |= {p: n.view_as(radii[p]) for p, n in zip(places, norms.unbind(), strict=True)}
    for one, other in together:
        by_place[one] = by_place[other] = torch.hypot(by_place[one], by_place[other])
    return [by_place[place] for place in range(len(weights))]


def in_one(rule: Callable[..., Tensor], *columns: Sequence[Tensor]) -> list[Tensor]:
    """rule(a, b, …) for each row of these columns of small tensors: one call for each device and type."""
    rows = list(zip(*columns, strict=True))
    alike: dict[Any, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        alike[row[-1].device, row[-1].dtype].append(place)
    by_place: dict[int, Tensor] = {}
    for places in alike.values():
        parts = zip(*(rows[place] for place in places), strict=True)
        flat = rule(*(torch.cat([part.reshape(-1) for part in column]) for column in parts))
        shapes = [rows[place][-1] for place in places]
        split = flat.split([shape.numel() for shape in shapes])
        by_place |= {p: f.view_as(s) for p, f, s in zip(places, split, shapes, strict=True)}
    return [by_place[place] for place in range(len(rows))]


def scale_(weights: Sequence[Tensor], radii: Sequence[Tensor], factors: Sequence[Tensor]) -> None:
    """Each weight times its factors, which have the shape of its radius."""
    whole: dict[Any, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for weight, radius, factor in zip(weights, radii, factors, strict=True):
        if factor.numel() == 1 and not is_sharded(weight):
            whole[weight.device, weight.dtype].append((weight, factor.reshape(1)))
        else:
            grouped_like(radius, weight).mul_(replicated_like(factor, weight))
    for pairs in whole.values():
        torch._foreach_mul_([weight for weight, _ in pairs], [factor for _, factor in pairs])


def _foreach(*columns: Sequence[Tensor]) -> list[list[list[Tensor]]]:
    """The columns grouped by device and dtype for `_foreach` calls; sharded tensors one by one."""
    alike: dict[Any, list[tuple[Tensor, ...]]] = defaultdict(list)
    for place, row in enumerate(zip(*columns, strict=True)):
        alike[place if is_sharded(row[0]) else (row[0].device, row[0].dtype)].append(row)
    return [[list(column) for column in zip(*rows, strict=True)] for rows in alike.values()]
