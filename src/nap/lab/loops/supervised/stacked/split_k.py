"""Sums that several programs have a part of each, added up in a fixed order (Triton)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_up(parts, whole, size, COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.arange(0, ROWS).to(tl.int64)[:, None]
    mask = (part < COUNT) & (at < size)[None, :]
    each = tl.load(parts + part * size + at[None, :], mask=mask, other=0.0)
    tl.store(whole + at, tl.sum(each, 0).to(whole.dtype.element_ty), mask=at < size)


def added_up(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the first axis, all of it read at once: a program waits but once."""
    if len(parts) == 1:
        return parts[0].to(dtype)
    whole = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    rows = triton.next_power_of_2(len(parts))
    columns = max(32, 4096 // rows)
    grid = (triton.cdiv(whole.numel(), columns),)
    _add_up[grid](parts, whole, whole.numel(), len(parts), rows, columns)
    return whole


def room(like: Tensor, parts: int, shape: tuple[int, ...]) -> Tensor:
    """For so many parts of a sum of this shape: in float32, but a single one is the sum itself."""
    return like.new_empty((parts, *shape), dtype=like.dtype if parts == 1 else torch.float32)
