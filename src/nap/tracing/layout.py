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

from nap.norms.norm import Section

_LABELLINGS, _TOLERANCE = 3, 1e-3  # chance that two of 100 heads are taken for one: about 4e-5
_MOST_POSITIONS = 256
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
    gradient = _features_last(_gradient(place, output, _noise(place)), axis)
    return frozenset((gradient != 0).any(0).nonzero().flatten().tolist())


def keeps_features(product: Tensor, copy: Tensor | None, result: Tensor, axis: int) -> bool:
    """Whether `result`, made of a product or of its copy, lists the same features on the same axis."""
    if result.ndim < -axis:
        return False
    if not product.numel():  # an expert that no token chose
        return product.shape[axis] == result.shape[axis]
    if copy is not None and result._base is copy and result.dtype == copy.dtype:
        return result.shape[axis] == copy.shape[axis] and result.stride(axis) == copy.stride(axis)
    try:
        ends = [reached_features(result.select(axis, i), product, axis) for i in (0, -1)]
    except LayoutError:  # nothing tells
        return False
    first, last = ends
    apart = result.shape[axis] == 1 or first != last
    return len(first) == len(last) == 1 and apart


def head_groups(operand: Tensor, contracted: int, output: Tensor, axis: int) -> Heads:
    """The groups of features of `output` that are contracted together in a q·k product.

    Each row of the operand (a vector that the product sums over) belongs to one head. Give every row
    a random label and pull the labels back to `output`: at any one position, the features of one head
    get the same mean label, those of another head another one. A few labellings tell all heads apart,
    however many there are and wherever they lie.
    """
    rows = operand.movedim(contracted, -1)
    noise = _noise(rows[(0,) * (rows.ndim - 1)])
    plain = _features_last(_gradient(rows, output, noise.expand_as(rows)), axis)
    marks = []
    for seed in range(1, _LABELLINGS + 1):
        labels = _noise(rows[..., 0], seed).unsqueeze(-1) * noise
        marks.append(_features_last(_gradient(rows, output, labels), axis) / plain)
    groups = _alike(plain != 0, torch.stack(marks, -1))
    positions, reached, gain = _one_row(rows, output, axis)
    if positions == 1 and any(len(group) < reached for group in groups):
        groups = _groups_of_rows(rows, output, axis)
    sizes = {len(group) for group in groups}
    if len(sizes) != 1:
        raise LayoutError(f"heads of {sorted(sizes)} features")
    if max(sizes) < rows.shape[-1] and positions > 1:
        raise LayoutError("the product runs over positions, not over features")
    return Heads(groups, gain)


def _groups_of_rows(rows: Tensor, output: Tensor, axis: int) -> tuple[frozenset[int], ...]:
    """The features that single rows depend on, where a vector is in several rows and moved in each.

    A local attention that rotates keys by their place in a window sees a key from two windows: its labels
    are mixed differently in each feature, so they tell no heads apart.
    """
    middle = [size // 2 for size in rows.shape[:-1]]
    found = set()
    for place, size in enumerate(rows.shape[:-1]):
        for i in range(min(size, _MOST_POSITIONS)):
            row = rows[(*middle[:place], i, *middle[place + 1 :])]
            gradient = _features_last(_gradient(row, output, _noise(row)), axis)
            if features := (gradient != 0).any(0).nonzero().flatten().tolist():
                found.add(frozenset(features))
    if sum(map(len, found)) != len(frozenset().union(*found)):
        raise LayoutError("heads that overlap")
    return tuple(sorted(found, key=min))


def _alike(reached: Tensor, marks: Tensor) -> tuple[frozenset[int], ...]:
    """Features that have the same marks at some position (the first axis), joined into groups.

    One position tells all heads apart, unless pooling has picked features from several.
    """
    everything = reached.any(0)
    head = torch.arange(reached.shape[1], device=reached.device)  # a number for each feature's group
    covered = torch.zeros_like(everything)
    for position in reached.sum(-1).argsort(descending=True, stable=True)[:_MOST_POSITIONS].tolist():
        left = reached[position].clone()
        while left.any():
            first = int(left.nonzero()[0])
            here = marks[position]
            same = left & ((here - here[first]).abs() <= _TOLERANCE * here[first].abs()).all(-1)
            joined = torch.isin(head, head[same])
            head = torch.where(joined, head[same].min(), head)
            left = left & ~same
        covered = covered | reached[position]
        if reached[position].equal(everything):
            break
    if not covered.equal(everything):
        raise LayoutError("the example input is too small to tell the heads apart")
    found = head[everything].unique().tolist()
    return tuple(frozenset((everything & (head == h)).nonzero().flatten().tolist()) for h in found)


def _one_row(rows: Tensor, output: Tensor, axis: int) -> tuple[int, int, float]:
    """On how many positions of `output` one row depends, on how many features, and by which factor."""
    for share in (2, 3, 1):  # the rim may be padding, which depends on nothing
        row = rows[tuple(max(0, size // share - 1) for size in rows.shape[:-1])]
        weights = _noise(row)
        gradient = _features_last(_gradient(row, output, weights), axis)
        if count := int((gradient != 0).any(-1).sum()):
            features = int((gradient != 0).any(0).sum())
            return count, features, float(gradient.norm() / weights.norm())
    return 0, 0, 1.0


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


def _noise(like: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(like.shape, generator=generator, dtype=torch.float64) + 0.5
    return drawn.to(like)


def _features_last(gradient: Tensor, axis: int) -> Tensor:
    """As a matrix of positions by features."""
    return gradient.movedim(axis, -1).flatten(0, -2) if gradient.ndim > 1 else gradient.unsqueeze(0)


def _gradient(place: Tensor, output: Tensor, weights: Tensor) -> Tensor:
    if not (place.requires_grad and output.requires_grad):
        raise LayoutError(_CUT)
    gradient = pulled_back(place, output, weights)
    if gradient is None:
        raise LayoutError(_CUT)
    return gradient


def pulled_back(place: Tensor, output: Tensor, weights: Tensor) -> Tensor | None:
    """The gradient of Σ weights·place in `output`; None where nothing leads there."""
    if place.is_complex():
        (gradient,) = torch.autograd.grad(place, output, weights, retain_graph=True, allow_unused=True)
    else:  # of a number: given weights, torch imports sympy to compare shapes, which takes longer than a plan
        with torch.enable_grad():
            total = (place * weights).sum()
        (gradient,) = torch.autograd.grad(total, output, retain_graph=True, allow_unused=True)
    return gradient
