"""The rules of step 2 for scale σ and offset μ of a norm, over tensors: joint (Algorithm 1) and decay.

Leading axes that list members of a population, or norms of the same width, are kept apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from nap.projection.sphere import factors_to, is_sharded, norms_over, replicated_like

Pair = tuple[Tensor | None, Tensor | None]
Rule = Callable[..., Pair]


def joint_scale_offset(
    scale: Tensor, offset: Tensor | None = None, *, stacked: int = 0
) -> tuple[Tensor, Tensor | None]:
    """(σ, μ)·√(d / (‖σ‖² + ‖μ‖²)), d = len(σ): Algorithm 1, the identity where σ = 1 and μ = 0.

    A pair of zeros has no direction and comes back as it is.

    Args:
        stacked: leading axes that list independent norms, such as the members of a population.

    >>> joint_scale_offset(torch.tensor([3.0, 3.0]), torch.tensor([0.0, 0.0]))
    (tensor([1., 1.]), tensor([0., 0.]))
    """
    members = scale.shape[:stacked]
    parts = [part.reshape(*members, -1) for part in (scale, offset) if part is not None]
    norm = norms_over(torch.cat(parts, dim=-1), [stacked])
    radius = math.sqrt(scale.shape[stacked:].numel())
    factor = factors_to(radius, norm).reshape(*members, *[1] * (scale.ndim - stacked))
    factor = replicated_like(factor, scale)
    return (factor * scale).to(scale.dtype), None if offset is None else (factor * offset).to(offset.dtype)


def decay_scale_offset(
    scale: Tensor | None, offset: Tensor | None = None, *, decay: float
) -> tuple[Tensor | None, Tensor | None]:
    """(ασ + (1 − α)·1, αμ) with α = 1 − decay: the paper's U_decay, a pull towards (1, 0).

    It acts entry by entry, so tensors of any shape will do, and either part may be missing.

    >>> decay_scale_offset(torch.tensor([3.0]), torch.tensor([1.0]), decay=0.5)
    (tensor([2.]), tensor([0.5000]))
    """
    keep = 1.0 - decay
    return None if scale is None else keep * scale + decay, None if offset is None else keep * offset


@torch.no_grad()
def apply_(rule: Rule, pairs: Iterable[Pair], *, when: Tensor | None = None) -> None:
    """Write rule(σ, μ) into every pair, where `when` (a truth value on the device) holds.

    Norms of the same shape go through the rule as one stack: some ten launches for a width, not for
    each norm. So `rule` must take the first axis for a list of norms.
    """
    alike: dict[Any, list[Pair]] = defaultdict(list)
    for pair in pairs:
        alike[tuple(t if t is None else (t.shape, t.dtype, t.device) for t in pair)].append(pair)
    for group in alike.values():
        columns = [[part for part in column if part is not None] for column in zip(*group, strict=True)]
        stacks = [torch.stack(column) if column else None for column in columns]
        for column, old, new in zip(columns, stacks, rule(*stacks), strict=True):
            if old is not None and new is not None:
                new = new if when is None else torch.where(when.to(old.device), new, old)
                if is_sharded(old):  # DTensor has no rule for _foreach_copy_
                    for part, value in zip(column, new.unbind(), strict=True):
                        part.copy_(value)
                else:
                    torch._foreach_copy_(column, list(new.unbind()))
