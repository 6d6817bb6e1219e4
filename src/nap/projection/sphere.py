"""The sphere that step 2 keeps a weight on: ‖W‖, and W ← ρ·W/‖W‖ (Algorithm 1), over tensors.

Leading axes that list members of a population or experts are kept apart. Norms are taken in float32
or better, and of a sharded weight (a DTensor) they are those of the whole, not of the shard at hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor


def norms_of(weight: Tensor, *, stacked: int = 0, out_axis: int | None = None, groups: int = 1) -> Tensor:
    """‖W‖ in float32 or better, shaped to broadcast against `weight` (with `groups`, as `norms_like` has it).

    Args:
        stacked: leading axes that list independent weights (experts, members of a population).
        out_axis: with it, one norm for each index along this axis (a row of a Linear).
        groups: of a transposed convolution: its first axis lists the inputs of each group, and an index
            along `out_axis` stands for an output of each. The norms then have an axis of groups in front.

    >>> norms_of(torch.ones(2, 3, 3), stacked=1).flatten()
    tensor([3., 3.])
    """
    if groups > 1 and out_axis is not None:
        weight, stacked, out_axis = weight.unflatten(0, (groups, -1)), 1, out_axis + 1
    kept = {*range(stacked), *(() if out_axis is None else (out_axis,))}
    return norms_over(weight.detach(), [axis for axis in range(weight.ndim) if axis not in kept])


def norms_like(radius: Tensor, weight: Tensor) -> Tensor:
    """The norms of `weight` that the entries of `radius` stand for: an axis of length one is summed over.

    One axis more than the weight has stands for groups, which its first axis lists one after the other.
    """
    weight = grouped_like(radius, weight)
    if radius.ndim != weight.ndim:
        raise ValueError(
            f"a radius of shape {tuple(radius.shape)} does not say which norms of a weight of shape "
            f"{tuple(weight.shape)} it means; keep an axis of length one for each axis summed over"
        )
    return norms_over(weight.detach(), [axis for axis, size in enumerate(radius.shape) if size == 1])


def grouped_like(radius: Tensor, weight: Tensor) -> Tensor:
    """A view of `weight` with its groups as an axis in front, where `radius` has one."""
    return weight.unflatten(0, (len(radius), -1)) if radius.ndim == weight.ndim + 1 else weight


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
        if radius.numel() == 1 and not is_sharded(weight):
            whole[weight.device, weight.dtype].append((weight, radius))
        else:
            factors = factors_to(radius, norms_like(radius, weight), when)
            grouped_like(radius, weight).mul_(replicated_like(factors, weight))
    for (device, dtype), pairs in whole.items():
        tensors = [weight for weight, _ in pairs]
        fused = _fused() if device.type == "cuda" and not torch.compiler.is_compiling() else None
        if fused is not None and fused.fits(tensors, [radius for _, radius in pairs]):
            fused.project_(tensors, [radius for _, radius in pairs], when)
            continue
        if device.type == "cpu":
            norms = torch.cat([norms_over(w, range(w.ndim)).reshape(1) for w in tensors])
        else:
            norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=_wide(dtype)))
        factors = factors_to(torch.cat([radius.reshape(1) for _, radius in pairs]), norms, when)
        # a factor with an axis (not a bare number) makes half-precision products round once, from float32
        torch._foreach_mul_(tensors, list(factors.unsqueeze(1).unbind()))


@cache
def _fused() -> Any:
    """Kernels for all weights of a GPU at once, where torch came with Triton (on Linux it does)."""
    try:
        from nap.projection import fused
    except ImportError:
        return None
    return fused


def norms_over(weight: Tensor, axes: Sequence[int]) -> Tensor:
    """Norms over these axes, which stay as axes of length one; of a sharded weight, its global norms.

    The first axis comes last: on CPU one long float32 sum drifts (6e-4 low at 16M entries), two do not.
    """
    if not axes:
        return weight.abs().to(_wide(weight.abs().dtype))
    norm: Any = weight
    for some in filter(None, (axes[1:], axes[:1])):
        norm = torch.linalg.vector_norm(norm, dim=tuple(some), keepdim=True, dtype=_wide(norm.dtype))
    return norm.full_tensor() if is_sharded(norm) else norm


def factors_to(radius: Tensor | float, norm: Tensor, when: Tensor | None = None) -> Tensor:
    """ρ/‖W‖, or 1 where a norm is zero or not finite, or where `when` is False."""
    usable = (norm > 0) & norm.isfinite()
    if when is not None:
        usable = usable & when.to(norm.device, non_blocking=True)
    return torch.where(usable, (radius / norm).to(norm.dtype), 1.0)


def is_sharded(weight: Tensor) -> bool:
    """Whether it is a DTensor, asked without an import: not every build of torch has them."""
    return hasattr(weight, "device_mesh")


def replicated_like(factor: Tensor, weight: Any) -> Tensor:
    """`factor` as a tensor that may meet `weight`: every rank of a sharded weight holds all of it."""
    if not is_sharded(weight):
        return factor
    from torch.distributed.tensor import DTensor, Replicate

    places = [Replicate()] * weight.device_mesh.ndim
    return DTensor.from_local(factor, weight.device_mesh, places, run_check=False)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
