"""The rules of step 2 over tensors: W ← ρ·W/‖W‖, and the joint and decay rules for scale and offset.

The rules take tensors; leading axes that list members of a population, experts, or norms of the same
width are kept apart. Beside them stands what the joint rule asks of a model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from nap.weights import Role, Weight, WeightTable

Pair = tuple[Tensor | None, Tensor | None]
NamePair = tuple[str | None, str | None]
Rule = Callable[..., Pair]


def norms_of(weight: Tensor, *, stacked: int = 0, out_axis: int | None = None) -> Tensor:
    """‖W‖ in float32 or better, shaped to broadcast against `weight`.

    Args:
        stacked: leading axes that list independent weights (experts, members of a population).
        out_axis: with it, one norm for each index along this axis (a row of a Linear).

    >>> norms_of(torch.ones(2, 3, 3), stacked=1).flatten()
    tensor([3., 3.])
    """
    kept = {*range(stacked), *(() if out_axis is None else (out_axis,))}
    return _norms_over(weight.detach(), [axis for axis in range(weight.ndim) if axis not in kept])


def norms_like(radius: Tensor, weight: Tensor) -> Tensor:
    """The norms of `weight` that the entries of `radius` stand for: an axis of length one is summed over."""
    if radius.ndim != weight.ndim:
        raise ValueError(
            f"a radius of shape {tuple(radius.shape)} does not say which norms of a weight of shape "
            f"{tuple(weight.shape)} it means; keep an axis of length one for each axis summed over"
        )
    return _norms_over(weight.detach(), [axis for axis, size in enumerate(radius.shape) if size == 1])


@torch.no_grad()
def project_tensors_(
    weights: Sequence[Tensor], radii: Sequence[Tensor], *, when: Tensor | None = None
) -> None:
    """W ← ρ·W/‖W‖ in place (Algorithm 1), with no word from the device to the host.

    The shape of a radius says which norms are meant: it is what `norms_of` gave, one number for a
    whole weight or one for each row, expert or member. A norm that is zero or not finite has no
    direction to keep, and its weight stays as it is.

    Args:
        when: a truth value on the device; where it is False nothing changes.

    >>> weight = torch.tensor([[3.0, 4.0]])
    >>> project_tensors_([weight], [torch.tensor([[1.0]])])
    >>> weight
    tensor([[0.6000, 0.8000]])
    """
    whole: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for weight, radius in zip(weights, radii, strict=True):
        if radius.numel() == 1 and not _is_sharded(weight):
            whole[weight.device, weight.dtype].append((weight, radius))
        else:
            weight.mul_(_replicated(_factors(norms_like(radius, weight), radius, when), weight))
    for (device, dtype), pairs in whole.items():
        tensors = [weight for weight, _ in pairs]
        if device.type == "cpu":
            norms = torch.cat([_norms_over(w, range(w.ndim)).reshape(1) for w in tensors])
        else:
            norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=_wide(dtype)))
        factors = _factors(norms, torch.cat([radius.reshape(1) for _, radius in pairs]), when)
        # a factor with an axis (not a bare number) makes half-precision products round once, from float32
        torch._foreach_mul_(tensors, list(factors.unsqueeze(1).unbind()))


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
    norm = _norms_over(torch.cat(parts, dim=-1), [stacked])
    radius = math.sqrt(scale.shape[stacked:].numel())
    factor = _factors(norm, radius).reshape(*members, *[1] * (scale.ndim - stacked))
    factor = _replicated(factor, scale)
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
                if _is_sharded(old):  # DTensor has no rule for _foreach_copy_
                    for part, value in zip(column, new.unbind(), strict=True):
                        part.copy_(value)
                else:
                    torch._foreach_copy_(column, list(new.unbind()))


def pairs_of(rows: Iterable[Weight]) -> list[NamePair]:
    """Names of scale and offset, paired by the module that owns them."""
    owners: dict[str, dict[str | None, str]] = {}
    for row in rows:
        owners.setdefault(row.name.rpartition(".")[0], {})[row.part] = row.name
    return [(parts.get("scale"), parts.get("offset")) for parts in owners.values()]


def check_joint(pairs: Sequence[NamePair], table: WeightTable, parameters: Mapping[str, Tensor]) -> None:
    """Refuse what the joint rule would break: it is exact only where φ(c·x) = c·φ(x) follows."""
    names = [name for pair in pairs for name in pair if name]
    whole = pairs_of(table.of(Role.AFFINE))
    if unknown := [name for name in names if table[name].homogeneous is None]:
        way = "call nap.normalize_(model, example_inputs) first, or use affine='decay'"
        refuse(unknown, "never traced, so affine='joint' cannot tell which activation follows", way)
    if curved := [name for name in names if not table[name].homogeneous]:
        why = "affine='joint' would change the function, for what follows is not ReLU-like"
        refuse(curved, why, f"use affine='decay', or exclude={curved!r}")
    if alone := [name for pair in pairs if pair not in whole or not pair[0] for name in pair if name]:
        why = "affine='joint' scales the scale and offset of a norm together, and this would move alone"
        refuse(alone, why, "exclude the whole norm by its module name, or use affine='decay'")
    for pair in pairs:
        norm = torch.stack([norms_of(parameters[name]).max() for name in pair if name]).norm()
        if not (norm > 0 and norm.isfinite()):
            refuse(pair, "a joint norm that is zero or not finite, so there is no direction to keep")


def refuse(names: Iterable[str | None], why: str, way_out: str = "") -> NoReturn:
    """Raise: the things, the reason and the way out (by default to exclude them)."""
    listed = [name for name in names if name]
    way_out = way_out or f"leave it out with Projector(model, exclude={listed!r})"
    raise ValueError(f"{', '.join(listed)}: {why}; {way_out}".removeprefix(": "))


def _norms_over(weight: Tensor, axes: Sequence[int]) -> Tensor:
    """Norms over these axes, which stay as axes of length one; of a sharded weight, its global norms.

    The first axis comes last: on CPU one long float32 sum drifts (6e-4 low at 16M entries), two do not.
    """
    if not axes:
        return weight.abs().to(_wide(weight.abs().dtype))
    norm: Any = weight
    for some in filter(None, (axes[1:], axes[:1])):
        norm = torch.linalg.vector_norm(norm, dim=tuple(some), keepdim=True, dtype=_wide(norm.dtype))
    return norm.full_tensor() if _is_sharded(norm) else norm


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _factors(norm: Tensor, radius: Tensor | float, when: Tensor | None = None) -> Tensor:
    usable = (norm > 0) & norm.isfinite()
    if when is not None:
        usable = usable & when.to(norm.device, non_blocking=True)
    return torch.where(usable, (radius / norm).to(norm.dtype), 1.0)


def _is_sharded(weight: Tensor) -> bool:
    return hasattr(weight, "device_mesh")  # a DTensor; no import, since not every build of torch has it


def _replicated(factor: Tensor, weight: Any) -> Tensor:
    """`factor` as a tensor that may meet `weight`: every rank of a sharded weight holds all of it."""
    if not _is_sharded(weight):
        return factor
    from torch.distributed.tensor import DTensor, Replicate

    places = [Replicate()] * weight.device_mesh.ndim
    return DTensor.from_local(factor, weight.device_mesh, places, run_check=False)
