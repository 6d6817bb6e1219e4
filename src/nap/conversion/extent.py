"""What a norm is over: which axes, which features, which members of a stack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from nap.conversion.decision import Want
from nap.conversion.placement import Options
from nap.norms.norm import EPS, Eps, Layout, Section
from nap.tracing.layout import LayoutError, sections
from nap.tracing.record import Use

ZERO_PART = "it is all zeros, and only a part of its result needs a norm", "initialise it"
FROM_ZERO = "; starts at zero, so its eps is absolute"


def eps_of(options: Options, *, fixed: bool) -> Eps:
    """The eps of a norm; absolute if `fixed`: no weights are in front, or all of them start at zero.

    A weight that starts at zero has no size that eps could be relative to. Its result would be of full size
    after the first update; with an absolute eps it grows along with the weight.
    """
    return EPS if fixed and options.eps == "relative" else options.eps


def layout_of(options: Options, axis: int, spatial: int) -> Layout:
    """What is normalised together, where features lie on `axis` and `spatial` axes are space."""
    if spatial >= 2 and options.over == "sample":
        return "sample"
    return "features" if axis == -1 else "channels"


def members_of(
    use: Use, model: nn.Module, layout: Layout, parts: object, mapped: tuple[int, ...] = ()
) -> dict[str, Any]:
    """Of a stack of layers: how many there are and where, for a norm with a scale and an offset for each.

    Those that `vmap` maps over lie on no axis.
    """
    if mapped and not parts:
        return {"members": mapped, "member_axes": ()}
    if not use.members or layout != "features" or parts or use.output is None:
        return {}
    counts = tuple(model.get_parameter(min(use.sources)).shape[: len(use.members)])
    ordered = list(use.members) == sorted(use.members) and use.members[-1] < -1
    if not ordered or -use.members[0] > use.output.ndim:
        return {}
    there = tuple(use.output.shape[axis] for axis in use.members)
    return {"members": counts, "member_axes": use.members} if there == counts else {}


def parts_of(want: Want, width: int) -> tuple[int, tuple[Section, ...]]:
    """Periods and sections of a norm for a part of the features; no sections where it is for all."""
    if want.whole or (len(want.part) == width and not want.heads):
        return 1, ()
    labels: list[tuple[str, int] | None] = [None] * width
    for index in want.part:
        labels[index] = ("part", 0)
    for name, groups in want.heads.items():
        for group in groups:
            if max(group) - min(group) + 1 != len(group):
                raise LayoutError("the features of one head are not next to each other")
            for index in group:
                labels[index] = (name, len(group))
    periods, parts = sections(width, labels)
    if sum(part.name == "part" for part in parts) > 1:  # what lies apart is normalised apart
        parts = tuple(replace(p, name=f"part{i}") if p.name == "part" else p for i, p in enumerate(parts))
    return periods, parts
