"""What a projection writes into the weights of a model, by name; a warning for what it cannot project."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nap.projection.affine import apply_, decay_scale_offset, joint_scale_offset
from nap.projection.names import shortened
from nap.projection.noisy import Two, places, project_together_
from nap.projection.plan import NamePair
from nap.projection.sphere import norms_like, project_tensors_
from nap.projection.steps import norms_together

_FEW = 64
CHECK_EVERY = 100  # projections, where a check makes the host wait for the device


def is_skipped(when: Tensor | None) -> bool:
    """Whether an update is known to be skipped."""
    return when is not None and when.device.type == "cpu" and not bool(when)


def _all_usable(norms: Tensor) -> bool:
    if norms.numel() <= _FEW:  # then Python is quicker than four kernels
        return all(0 < norm < math.inf for norm in norms.flatten().tolist())
    return bool(((norms > 0) & norms.isfinite()).all())


class DirectionCheck:
    """Warns once of each weight without a direction, by name.

    On a CPU it checks each projection, elsewhere every hundredth, so that steps do not wait for the device.
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()
        self._projections = 0

    def is_due(self, norms: Sequence[Tensor]) -> bool:
        """Whether to check the weights that were just projected; `norms` are theirs, where known."""
        if torch.compiler.is_compiling():
            return False
        self._projections += 1
        if norms and all(norm.device.type == "cpu" for norm in norms):
            return not all(map(_all_usable, norms))
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        no_values = any(norm.is_meta for norm in norms)
        return self._projections % CHECK_EVERY == 0 and not capturing and not no_values

    def warn(self, weights: Mapping[str, Tensor], radii: Mapping[str, Tensor]) -> None:
        """Warn of weights whose norm is zero or not finite, each once."""
        new = []
        for name, weight in weights.items():
            norm = norms_like(radii[name], weight)
            if name not in self._warned and not bool(((norm > 0) & norm.isfinite()).all()):
                new.append(name)
        self._warned.update(new)
        if new:
            warnings.warn(
                f"{', '.join(shortened(new))}: became zero, infinite or NaN in training (all, a row or "
                "an expert), so there is no direction to project, and it stays as it is; go back to a "
                "checkpoint from before, and lower the learning rate or clip gradients",
                stacklevel=4,
            )


Tensors = Mapping[Any, Tensor]


def project_all_(
    tensors: Tensors,
    radii: Tensors,
    pairs: Collection[Two],
    growing: Collection[str],
    when: Tensor | None,
    check: DirectionCheck,
) -> None:
    """W ← ρ·W/‖W‖ for all that have a radius; what grows only from beyond, pairs together."""
    together = {name for pair in pairs for name in pair}
    for ceiling in (False, True) if growing else (False,):
        alone = [n for n in radii if n not in together and (n in growing) is ceiling]
        weights, limits = {name: tensors[name] for name in alone}, [radii[name] for name in alone]
        norms = project_tensors_(list(weights.values()), limits, when=when, ceiling=ceiling)
        if not (ceiling or is_skipped(when)) and check.is_due(norms):
            check.warn(weights, radii)
    if pairs:
        groups = [(tensors[mean], tensors[noise]) for mean, noise in pairs]
        project_together_(groups, [radii[mean] for mean, _ in pairs], when=when)


def affine_all_(
    tensors: Tensors,
    pairs: Collection[NamePair],
    members: Mapping[str | None, int],
    settings: Mapping[str, Any],
    when: Tensor | None,
) -> None:
    """The rule for scale and offset of each norm; `members` says how many of their axes list members."""
    stacks = {pair: members.get(pair[0] or pair[1], 0) for pair in pairs}
    for stacked in sorted(set(stacks.values())):
        rule: Callable[..., Any] = partial(joint_scale_offset, stacked=1 + stacked)
        if settings["affine"] == "decay":
            rule = partial(decay_scale_offset, decay=settings["decay"])
        alike = [pair for pair, count in stacks.items() if count == stacked]
        apply_(
            rule,
            [(tensors.get(s), tensors.get(o)) for s, o in alike if s in tensors or o in tensors],
            when=when,
        )


def ratios_of(find: Callable[[str], Tensor], radii: Tensors, pairs: Collection[Two]) -> dict[str, float]:
    """‖W‖/ρ by name; pairs count as one; of several norms, the ratio furthest from one."""
    names, limits = list(radii), list(radii.values())
    norms = norms_together([find(name) for name in names], limits, places(names, pairs))
    ratios = {}
    for name, norm, radius in zip(names, norms, limits, strict=True):
        ratio = (norm / radius.to(norm.device)).flatten()
        ratios[name] = ratio[(ratio - 1).abs().argmax()].item()
    return ratios


def lengths_of(find: Callable[[str], Tensor], radii: Tensors, pairs: Collection[Two]) -> dict[str, Tensor]:
    """The length of a relative step at rate 1: ρ, shared by a pair in proportion to its norms."""
    lengths = dict(radii)
    for pair in pairs if radii else ():
        limits = [radii[name] for name in pair]
        single = norms_together([find(name) for name in pair], limits)
        joint = torch.hypot(*single)
        lengths |= {n: r.to(s.device) * s / joint for n, r, s in zip(pair, limits, single, strict=True)}
    return lengths
