"""The sphere that step 2 keeps a weight on: ‖W‖, and W ← ρ·W/‖W‖ (Algorithm 1), over tensors.

Leading axes that list members of a population or experts are kept apart. Norms are taken in float32
or better, and of a sharded weight (a DTensor) they are those of the whole, not of the shard at hand.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from nap.norms.small import LONG, SmallWeight, is_small


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
    """The norms of `weight` in the shape of `radius`: an axis of length one is summed over.

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
    weights: Sequence[Tensor],
    radii: Sequence[Tensor],
    *,
    when: Tensor | None = None,
    ceiling: bool = False,
) -> list[Tensor]:
    """W ← ρ·W/‖W‖ in place (Algorithm 1), with no word from the device to the host.

    The shape of a radius says which norms are meant: it is what `norms_of` gave, one number for a
    whole weight or one for each row, expert or member. A norm that is zero or not finite has no
    direction to keep, and its weight stays as it is. Returns the norms as they were, in no order; on CUDA
    the kernels for many weights keep theirs to themselves.

    Args:
        when: a truth value on the device; where it is False nothing changes.
        ceiling: only what has grown beyond its radius goes back to it, W ← W·min(1, ρ/‖W‖).

    >>> weight = torch.tensor([[3.0, 4.0]])
    >>> project_tensors_([weight], [torch.tensor([[1.0]])])
    [tensor([5.])]
    >>> weight
    tensor([[0.6000, 0.8000]])
    """
    found: list[Tensor] = []
    whole: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for weight, radius in zip(weights, radii, strict=True):
        if radius.numel() == 1 and not is_sharded(weight):
            whole[weight.device, weight.dtype].append((weight, radius))
        else:
            found.append(norms_like(radius, weight))
            factor = factors_to(radius, found[-1], when, ceiling=ceiling)
            grouped_like(radius, weight).mul_(replicated_like(factor, weight))
    for (device, _), pairs in whole.items():
        tensors = [weight for weight, _ in pairs]
        own = device.type == "cuda" and not ceiling and not torch.compiler.is_compiling()
        fused = _fused() if own else None
        if fused is not None and fused.fits(tensors, [radius for _, radius in pairs]):
            fused.project_(tensors, [radius for _, radius in pairs], when)
            continue
        norms = norms_of_whole(tensors)
        factors = factors_to(torch.cat([r.reshape(1) for _, r in pairs]), norms, when, ceiling=ceiling)
        # a factor with an axis (not a bare number) makes half-precision products round once, from float32
        torch._foreach_mul_(tensors, list(factors.unsqueeze(1).unbind()))
        found.append(norms)
    return found


@cache
def _fused() -> Any:
    """The module of Triton kernels, or None if Triton is not installed."""
    try:
        from nap.kernels import projection_triton
    except ImportError:
        return None
    return projection_triton


def norms_of_whole(weights: Sequence[Tensor]) -> Tensor:
    """A vector of ‖W‖ of each weight; all must have one device and dtype and not be sharded.

    >>> norms_of_whole([torch.ones(4, 4), torch.ones(9)])
    tensor([4., 3.])
    """
    if weights[0].device.type == "cpu":
        return torch.cat([norms_over(weight, range(weight.ndim)).reshape(1) for weight in weights])
    summed = torch._foreach_norm(list(weights), 2, dtype=_summed(weights[0]))
    return torch.stack(summed).to(_real(weights[0].dtype))


def norms_over(weight: Tensor, axes: Sequence[int]) -> Tensor:
    """Norms over these axes, which stay as axes of length one; of a sharded weight, its global norms.

    Norms up to 1e38 and down to 1e-38 are found in float32, too, whose squares end at 1e19 and 1e-23: on CUDA
    sums are in float64, and on a CPU those that need it, since there that takes thirty times as long.
    """
    if not axes:
        return weight.abs().to(_wide(weight.abs().dtype))
    if is_plain(weight):
        norm = _on_cpu(weight, axes)
        if norm.dtype == torch.float32 and not bool(((norm > SMALLEST) & (norm < LARGEST)).all()):
            norm = _at_once(weight, axes, torch.promote_types(weight.dtype, torch.float64)).float()
        return norm
    part: Any = _at_once(weight, axes, _summed(weight))
    whole: Tensor = part.full_tensor() if is_sharded(part) else part
    return whole.to(_real(weight.dtype))


SMALLEST, LARGEST = 1e-12, 1e18  # between them float32 squares lose nothing, of up to 1e9 entries
_PIECE = 1 << 12  # entries: float32 sums on a CPU that are longer than LONG drift, and are cut up


def _at_once(weight: Tensor, axes: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.linalg.vector_norm(weight, dim=tuple(axes), keepdim=True, dtype=dtype)


def _on_cpu(weight: Tensor, axes: Sequence[int]) -> Tensor:
    """Norms on a CPU in several short sums: one float32 sum of 16M numbers is 6e-4 low."""
    if len(axes) == weight.ndim and is_small(weight):
        return weight.new_full([1] * weight.ndim, SmallWeight(weight).norm())
    norm = weight
    for some in filter(None, (axes[1:], axes[:1])):
        if math.prod(norm.shape[axis] for axis in some) <= LONG:
            norm = _at_once(norm, some, _wide(norm.dtype))
        else:
            moved = norm.movedim(tuple(some), tuple(range(-len(some), 0))).flatten(-len(some))
            sizes = [1 if axis in some else size for axis, size in enumerate(norm.shape)]
            norm = _of_pieces(moved).reshape(sizes)
    return norm


def _of_pieces(lines: Tensor) -> Tensor:
    """Norms over the last axis, from norms of pieces of it."""
    while lines.shape[-1] > LONG:
        whole = lines.shape[-1] // _PIECE * _PIECE
        pieces = lines[..., :whole].unflatten(-1, (-1, _PIECE))
        norms = [torch.linalg.vector_norm(pieces, dim=-1, dtype=_wide(lines.dtype))]
        if whole < lines.shape[-1]:
            norms.append(_at_once(lines[..., whole:], [-1], _wide(lines.dtype)))
        lines = torch.cat(norms, dim=-1)
    return torch.linalg.vector_norm(lines, dim=-1, dtype=_wide(lines.dtype))


def is_plain(weight: Tensor) -> bool:
    """Whether this is an ordinary CPU tensor whose values can be read now (no compiler, no vmap)."""
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.is_cpu
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(weight)
    )


def _summed(weight: Tensor) -> torch.dtype:
    """The dtype of sums of squares: float64 where the device has it."""
    has_double = weight.device.type == "cuda" or (weight.device.type == "cpu" and not is_sharded(weight))
    return torch.promote_types(weight.dtype, torch.float64 if has_double else torch.float32)


def factors_to(
    radius: Tensor | float, norm: Tensor, when: Tensor | None = None, *, ceiling: bool = False
) -> Tensor:
    """ρ/‖W‖, or 1 where a norm is zero or not finite, where `when` is False, or below a `ceiling`."""
    usable = (norm > (radius if ceiling else 0)) & norm.isfinite()
    if when is not None:
        usable = usable & when.to(norm.device, non_blocking=True)
    return torch.where(usable, (radius / norm).to(norm.dtype), 1.0)


def is_sharded(weight: Tensor) -> bool:
    """Whether this is a DTensor; some builds of torch cannot import the class."""
    return hasattr(weight, "device_mesh")


def replicated_like(factor: Tensor, weight: Any) -> Tensor:
    """`factor` as a replicated DTensor if `weight` is a DTensor."""
    if not is_sharded(weight):
        return factor
    from torch.distributed.tensor import DTensor, Replicate

    places = [Replicate()] * weight.device_mesh.ndim
    return DTensor.from_local(factor, weight.device_mesh, places, run_check=False)


def _real(dtype: torch.dtype) -> torch.dtype:
    """The real dtype of norms: float32 or float64."""
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
