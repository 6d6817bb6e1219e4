"""Which features of a layer's output reach a place: read off the sparsity of gradients.

Fused projections lay queries, keys, values and gates out in many ways. Instead of knowing them, ask
autograd: the gradient from the place back to the layer's output is nonzero exactly at the features
that reach it, whatever views, splits, permutations and rotations lie between.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nap.norms import Section

_CUT = "the path back to the layer is cut (no_grad or detach)"


class LayoutError(ValueError):
    """The features that reach a place do not form equal, separate groups."""


@dataclass(frozen=True)
class Heads:
    """How one operand of a q·k product is laid out in its producer's output."""

    groups: tuple[frozenset[int], ...]  # the features of each head
    gain: float  # factor between the producer's output and the operand


def reached_features(place: Tensor, output: Tensor, axis: int) -> frozenset[int]:
    """The features of `output` (along `axis`) that `place` depends on."""
    gradient = _gradient(place, output)
    if gradient is None:
        raise LayoutError(_CUT)
    others = [d for d in range(output.ndim) if d != axis % output.ndim]
    reached = (gradient != 0).any(dim=others) if others else gradient != 0
    return frozenset(reached.nonzero().flatten().tolist())


def head_groups(operand: Tensor, contracted: int, output: Tensor, axis: int) -> Heads:
    """The groups of features of `output` that are contracted together in a q·k product.

    Each row of the operand (a vector that the product sums over) depends on the features of one head.
    Rows are asked one by one, only along the axes where heads lie, until every feature is placed.
    """
    rows = operand.movedim(contracted, -1)
    lead = rows.shape[:-1]
    middle = [size // 2 for size in lead]  # the rim may be padding, which depends on nothing
    everything = reached_features(operand, output, axis)
    seen: dict[frozenset[int], None] = {}
    gains = []

    def group(index: Sequence[int]) -> frozenset[int]:
        row = rows[tuple(index)]
        weights = _noise(row)
        gradient = _gradient(row, output, weights)
        if gradient is None:
            raise LayoutError(_CUT)
        reached = (gradient != 0).movedim(axis, -1).flatten(0, -2)
        found = frozenset(reached.any(0).nonzero().flatten().tolist())
        if len(found) < rows.shape[-1] and int(reached.any(-1).sum()) > 1:
            raise LayoutError("the product runs over positions, not over features")
        if found:
            gains.append(float(gradient.norm() / weights.norm()))
            seen[found] = None
        return found

    base = group(middle)
    head_axes = []
    for d, size in enumerate(lead):
        tried = {j for j in (0, middle[d] - 1, middle[d] + 1, size - 1) if 0 <= j < size}
        if any(group([*middle[:d], j, *middle[d + 1 :]]) not in (base, frozenset()) for j in sorted(tried)):
            head_axes.append(d)
    for index in itertools.product(*(range(n) if d in head_axes else (middle[d],) for d, n in enumerate(lead))):
        if frozenset().union(*seen) == everything:
            break
        group(index)
    groups = tuple(sorted(seen, key=min))
    sizes = [len(g) for g in groups]
    if not groups or len(set(sizes)) > 1 or len(frozenset().union(*groups)) < sum(sizes):
        raise LayoutError(f"heads of {sorted(set(sizes))} features that overlap or differ")
    return Heads(groups, sum(gains) / len(gains))


def sections(width: int, labels: Sequence[tuple[str, int] | None]) -> tuple[int, tuple[Section, ...]]:
    """Periods and sections of a feature axis from each feature's (name, features per head) or None.

    >>> periods, parts = sections(6, [("q", 2)] * 4 + [None] * 2)
    >>> periods, parts[0]
    (1, Section(length=4, name='q', head=2))
    >>> sections(4, [("gate", 0), None] * 2)[0]
    2
    """
    period = next(
        p for p in range(1, width + 1) if width % p == 0 and list(labels) == list(labels[:p]) * (width // p)
    )
    period = width if period == 1 else period
    runs = [(label, len(list(run))) for label, run in itertools.groupby(labels[:period])]
    found = tuple(Section(length, *(label or (None, 0))) for label, length in runs)
    if any(s.head and s.length % s.head for s in found):
        raise LayoutError("the features of one head are not next to each other")
    return width // period, found


def _noise(like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(like.shape, generator=generator, dtype=torch.float64) + 0.5
    return drawn.to(like)


def _gradient(place: Tensor, output: Tensor, weights: Tensor | None = None) -> Tensor | None:
    if not place.requires_grad:
        return None
    weights = _noise(place) if weights is None else weights
    (gradient,) = torch.autograd.grad(place, output, weights, retain_graph=True, allow_unused=True)
    return gradient
