"""The unit that each entry of a tensor depends on, from the sparsity of the Jacobian J.

A product J·t costs two backward passes. Let t be code[u] at unit u: where an entry depends on u alone,
J·t / J·1 is code[u]; where it depends on several units, it is a mean of their codes. Two codes in random
order tell the two cases apart.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

NONE, MIXED = -1, -2  # an entry that depends on no unit, or on more than one


def unit_of_entries(target: Tensor, leaf: Tensor, unit_of_leaf: Tensor, units: int) -> Tensor | None:
    """For each entry of `target` the unit of `leaf` it depends on, NONE or MIXED; None if unconnected.

    Args:
        unit_of_leaf: the unit of each entry of `leaf`, broadcast to its shape; NONE where there is none.

    >>> leaf = torch.rand(1, 3, requires_grad=True)
    >>> unit_of_entries(torch.cat([leaf, leaf[:, :1] + leaf[:, 1:2]], 1), leaf, torch.arange(3), 3)
    tensor([[ 0,  1,  2, -2]])
    """
    push = _pushforward(target, leaf)
    if push is None:
        return None

    def image(code: Tensor) -> Tensor:
        return push(torch.cat([code, code.new_zeros(1)])[unit_of_leaf].expand_as(leaf))

    ones = image(leaf.new_ones(units))
    empty, mixed, found = ones == 0, torch.zeros_like(ones, dtype=torch.bool), []
    for seed in (0, 1):
        order = torch.randperm(units, generator=torch.Generator().manual_seed(seed)).to(leaf.device)
        coded = image(1 + order.to(leaf.dtype) / units)
        rank = ((coded / ones - 1) * units).nan_to_num(-1.0, -1.0, -1.0).clamp(-1, units)
        nearest = rank.round().long()
        mixed |= (rank - nearest).abs().gt(0.1) | (nearest < 0) | (nearest >= units)
        found.append(order.argsort()[nearest.clamp(0, units - 1)])
        empty &= coded == 0
    mixed |= found[0] != found[1]
    return torch.where(empty, NONE, torch.where(mixed, MIXED, found[0]))


def depends(target: Tensor, leaf: Tensor) -> Tensor:
    """Which entries of `target` depend on `leaf` at all.

    >>> leaf = torch.rand(2, requires_grad=True)
    >>> depends(torch.cat([leaf - leaf.mean(), torch.ones(1)]), leaf)
    tensor([ True,  True, False])
    """
    push = _pushforward(target, leaf)
    if push is None:
        return torch.zeros_like(target, dtype=torch.bool)
    return push(torch.rand(leaf.shape, generator=torch.Generator().manual_seed(0)).to(leaf)) != 0


def _pushforward(target: Tensor, leaf: Tensor) -> Callable[[Tensor], Tensor] | None:
    """t ↦ J·t by differentiating v ↦ vᵀJ, which is linear; None if no path joins the two."""
    if not target.requires_grad:
        return None
    cotangent = torch.zeros_like(target, requires_grad=True)
    (pulled,) = torch.autograd.grad(target, leaf, cotangent, create_graph=True, allow_unused=True)
    if pulled is None:
        return None

    def push(tangent: Tensor) -> Tensor:
        (out,) = torch.autograd.grad(pulled, cotangent, tangent, retain_graph=True, allow_unused=True)
        return torch.zeros_like(target) if out is None else out

    return push


def along_axis(unit: Tensor, axis: int) -> Tensor | None:
    """The unit at each index of one axis, if it is the same at all other positions; else None.

    >>> along_axis(torch.tensor([[0, 1], [0, 1]]), axis=1), along_axis(torch.tensor([[0, 1], [1, 0]]), axis=1)
    (tensor([0, 1]), None)
    """
    rows = unit.movedim(axis, -1).reshape(-1, unit.shape[axis])
    highest = rows.amax(0)
    agrees = (rows == highest) | (rows == NONE)  # padding and unused positions have no unit
    return highest if bool(agrees.all()) else None
