"""Networks on images or videos that look back only: norms over space would show them what comes later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from nap.conversion.decision import Decision
from nap.conversion.trial import Example, fixed_randomness

SHORTEST = 4  # axes that are shorter show no order


def refuse_causal(decision: Decision, model: nn.Module, example: Example) -> None:
    """Refuses a norm over space where outputs at one place depend on one side of it only."""
    spread = [place.module for place in decision.placements.values() if place.layout == "sample"]
    if not spread or decision.problems:
        return
    try:
        axis = ordered_axis(model, *example)
    except Exception:  # no gradients, say: nap.verify tries it without, and names what it cannot
        return
    if axis is not None:
        reason = (
            f"its norm is over all positions, and along axis {axis} of the input the model looks to one side "
            "only, as causal convolutions do"
        )
        decision.refuse(spread[0], reason, "convert it with over='position'")


def ordered_axis(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """The axis of space in the input along which outputs depend on what comes before, or after, but not both.

    >>> past = nn.Sequential(nn.ZeroPad2d((1, 1, 2, 0)), nn.Conv2d(1, 1, 3))
    >>> ordered_axis(past, (torch.randn(1, 1, 6, 6),), {})
    2
    """
    given = tree_map(_leaf, (args, dict(kwargs)))
    inputs = [x for x in tree_leaves(given) if isinstance(x, Tensor) and x.requires_grad and x.ndim > 3]
    if not inputs:
        return None
    with torch.enable_grad(), fixed_randomness(model):
        args, kwargs = tree_map(_copy, given)  # which the model may change in place
        results = tree_leaves(model(*args, **kwargs))
        for result in results:
            if isinstance(result, Tensor) and result.requires_grad:
                for axis in range(1, result.ndim):
                    for found in _one_sided(result, axis, inputs):
                        return found
    return None


def _one_sided(result: Tensor, axis: int, inputs: list[Tensor]) -> Iterator[int]:
    size = result.shape[axis]
    axes = [(i, a) for i, x in enumerate(inputs) for a in range(2, x.ndim) if x.shape[a] == size]
    if not axes or size < SHORTEST:
        return
    middle = size // 2
    sides = []
    for place in (middle, middle - 1):  # between two patches there seems to be an order at one of them
        chosen = result.select(axis, place)
        gradients = torch.autograd.grad(
            chosen, inputs, torch.rand_like(chosen), retain_graph=True, allow_unused=True
        )
        sides.append([_sides(gradients[i], a, place) for i, a in axes])
    for (_, a), here, near in zip(axes, *sides, strict=True):
        if here == near and here[0] != here[1]:
            yield a


def _sides(gradient: Tensor | None, axis: int, place: int) -> tuple[bool, bool]:
    """Whether what comes before the place counts, and what comes after."""
    if gradient is None:
        return False, False
    after = gradient.narrow(axis, place + 1, gradient.shape[axis] - place - 1)
    return bool(gradient.narrow(axis, 0, place).any()), bool(after.any())


def _leaf(x: Any) -> Any:
    return x.detach().clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x


def _copy(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x
