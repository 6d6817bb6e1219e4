"""What a projection writes into the weights of a model, by name: `sphere`, `noisy` and `affine`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from nap.projection.affine import apply_, decay_scale_offset, joint_scale_offset
from nap.projection.lost import Lost, is_undone
from nap.projection.noisy import Two, norms_together, project_together_
from nap.projection.plan import NamePair
from nap.projection.sphere import norms_like, project_tensors_

Held = Mapping[Any, Tensor]


def project_all_(
    held: Held, radii: Held, pairs: Collection[Two], growing: Collection[str], when: Tensor | None, lost: Lost
) -> None:
    """W ← ρ·W/‖W‖ for all that have a radius; what grows only from beyond, pairs together."""
    together = {name for pair in pairs for name in pair}
    for ceiling in (False, True) if growing else (False,):
        alone = [n for n in radii if n not in together and (n in growing) is ceiling]
        weights, limits = {name: held[name] for name in alone}, [radii[name] for name in alone]
        norms = project_tensors_(list(weights.values()), limits, when=when, ceiling=ceiling)
        if not (ceiling or is_undone(when)) and lost.is_due(norms):
            lost.warn(weights, radii)
    if pairs:
        groups = [(held[mean], held[noise]) for mean, noise in pairs]
        project_together_(groups, [radii[mean] for mean, _ in pairs], when=when)


def affine_all_(
    held: Held,
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
        apply_(rule, [(held.get(s), held.get(o)) for s, o in alike if s in held or o in held], when=when)


def ratios_of(find: Callable[[str], Tensor], radii: Held, pairs: Collection[Two]) -> dict[str, float]:
    """‖W‖/ρ by name, of pairs together; of several norms, the ratio furthest from one."""
    ratios, shares = {}, {name: pair for pair in pairs for name in pair}
    for name, radius in radii.items():
        norm = norms_together(radius, map(find, shares.get(name, (name,))))
        ratio = (norm / radius.to(norm.device)).flatten()
        ratios[name] = ratio[(ratio - 1).abs().argmax()].item()
    return ratios


def lengths_of(find: Callable[[str], Tensor], radii: Held, pairs: Collection[Two]) -> dict[str, Tensor]:
    """How long a relative step at rate 1 is: ρ, of which each of a pair has the share of its norm."""
    lengths, shares = {}, {name: pair for pair in pairs for name in pair}
    for name, radius in radii.items():
        lengths[name] = radius
        if name in shares:
            norm = norms_like(radius, find(name))
            lengths[name] = radius.to(norm.device) * norm / norms_together(radius, map(find, shares[name]))
    return lengths
