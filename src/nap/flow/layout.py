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

_MOST_ROWS = 8192  # of an attention operand; beyond it the layout is given up rather than guessed


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
        raise LayoutError("the path back to the layer is cut (no_grad or detach)")
    others = [d for d in range(output.ndim) if d != axis % output.ndim]
    reached = (gradient != 0).any(dim=others) if others else gradient != 0
    return frozenset(reached.nonzero().flatten().tolist())


def head_groups(operand: Tensor, contracted: int, output: Tensor, axis: int) -> Heads:
    """The groups of features of `output` that are contracted together in a q·k product."""
    rows = operand.movedim(contracted, -1)
    lead = rows.shape[:-1]
    seen: dict[frozenset[int], None] = {}
    gains = []

    def group(index: Sequence[int]) -> frozenset[int]:
        weights = _noise(rows[tuple(index)])
        gradient = _gradient(rows[tuple(index)], output, weights)
        if gradient is None:
            raise LayoutError("the path back to the layer is cut (no_grad or detach)")
        gains.append(float(gradient.norm() / weights.norm()))
        places = (gradient != 0).movedim(axis, -1).flatten(0, -2)
        if int(places.any(-1).sum()) > 1:
            raise LayoutError("the product runs over positions, not over features")
        found = frozenset(places.any(0).nonzero().flatten().tolist())
        seen[found] = None
        return found

    base = group([0] * len(lead))
    head_axes = []
    for d, size in enumerate(lead):
        ends = {j for j in (1, size - 1) if 0 < j < size}
        if any(group([j if e == d else 0 for e in range(len(lead))]) != base for j in ends):
            head_axes.append(d)
    if torch.Size(lead[d] for d in head_axes).numel() > _MOST_ROWS:
        raise LayoutError(f"the operand has more than {_MOST_ROWS} rows; use a smaller example input")
    for index in itertools.product(*(range(lead[d]) if d in head_axes else (0,) for d in range(len(lead)))):
        group(index)
    groups = tuple(sorted((g for g in seen if g), key=min))
    if (
        not groups
        or len({len(g) for g in groups}) > 1
        or len(frozenset().union(*groups)) < sum(map(len, groups))
    ):
        raise LayoutError(f"heads of sizes {sorted(len(g) for g in groups)} that overlap or differ")
    return Heads(groups, sum(gains) / len(gains))


def sections(width: int, labels: Sequence[tuple[str, int] | None]) -> tuple[int, tuple[Section, ...]]:
    """Periods and sections of a feature axis from each feature's (name, features per head) or None.

    >>> sections(6, [("q", 2)] * 2 + [("k", 2)] * 2 + [None] * 2)
    (1, (Section(length=2, name='q', head=2), Section(length=2, name='k', head=2), Section(length=2, name=None, head=0)))
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
