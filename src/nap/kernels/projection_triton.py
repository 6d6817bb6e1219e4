"""All weights of a GPU back on their spheres in three launches, however many they are (Triton).

PyTorch has no product of a list of tensors with a factor for each that lies on the device: that takes a
launch for every weight. Here each block of numbers looks up in a table which weight it belongs to. Squares
are summed in a fixed order, so results repeat bit by bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048  # numbers that one program reads
_DTYPES: dict[torch.dtype, Any] = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@triton.jit
def _block_norms(table, owners, norms, DTYPE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    row = table + 4 * tl.load(owners + block)  # of the table: address, size, first block, address of radius
    at = (block - tl.load(row + 2)) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(row).to(tl.pointer_type(DTYPE))
    value = tl.load(weight + at, mask=at < tl.load(row + 1), other=0.0).to(WIDE)
    largest = tl.max(tl.abs(value))  # scaled by it, squares of 1e30 and of 1e-30 are numbers, too
    scale = tl.where(largest > 0, largest, 1.0)
    scaled = value / scale
    tl.store(norms + block, scale * tl.sqrt(tl.sum(scaled * scaled)))


@triton.jit
def _factors(table, norms, when, factors, WIDE: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    weight = tl.program_id(0)
    row = table + 4 * weight
    first, blocks = tl.load(row + 2), tl.cdiv(tl.load(row + 1), BLOCK)
    total = tl.zeros([1024], tl.float64)
    for start in range(0, blocks, 1024):
        at = start + tl.arange(0, 1024)
        norm_of_block = tl.load(norms + first + at, mask=at < blocks, other=0.0).to(tl.float64)
        total += norm_of_block * norm_of_block
    norm = tl.sqrt(tl.sum(total))
    usable = (norm > 0) & (norm < float("inf"))  # a norm of zero or beyond has no direction to keep
    if MASKED:
        usable = usable & (tl.load(when) != 0)
    radius = tl.load(tl.load(row + 3).to(tl.pointer_type(WIDE))).to(tl.float64)
    tl.store(factors + weight, tl.where(usable, radius / tl.where(usable, norm, 1.0), 1.0).to(WIDE))


@triton.jit
def _rescale(table, owners, factors, DTYPE: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    row = table + 4 * owner
    at = (block - tl.load(row + 2)) * BLOCK + tl.arange(0, BLOCK)
    inside = at < tl.load(row + 1)
    weight = tl.load(row).to(tl.pointer_type(DTYPE))
    value = tl.load(weight + at, mask=inside, other=0.0).to(WIDE) * tl.load(factors + owner)
    tl.store(weight + at, value.to(DTYPE), mask=inside)


def fits(weights: Sequence[Tensor], radii: Sequence[Tensor]) -> bool:
    """Whether `project_` can take these: plain tensors of one GPU and type, each in one piece of memory."""
    plain = all(type(t) in (Tensor, torch.nn.Parameter) for t in (*weights, *radii))
    if not plain or weights[0].dtype not in _DTYPES:
        return False
    wide = torch.promote_types(weights[0].dtype, torch.float32)
    if any(r.dtype != wide or r.device != weights[0].device for r in radii):
        return False
    if not all(_in_one_piece(w) for w in weights):
        return False
    if torch.cuda.is_current_stream_capturing():  # it can use a table that is there, and make none
        return _key(weights, radii) in _TABLES
    return works(weights[0].device)


@cache
def works(device: torch.device) -> bool:
    """Whether kernels can be made for this GPU: it takes a C compiler, and not too old a card. Tried once."""
    weight, radius = torch.ones(2, 2, device=device), torch.ones(1, 1, device=device)
    try:
        project_([weight], [radius])
    except Exception as error:  # whatever it is, there is another way
        warnings.warn(
            f"weights on {device} are projected one by one, which is slower: Triton could not make kernels "
            f"({error})",
            stacklevel=2,
        )
        return False
    return True


def project_(weights: Sequence[Tensor], radii: Sequence[Tensor], when: Tensor | None = None) -> None:
    """W ← ρ·W/‖W‖ for all of them, where `when` holds; see `project_tensors_`."""
    device, dtype = weights[0].device, weights[0].dtype
    kinds = {"WIDE": tl.float64 if dtype == torch.float64 else tl.float32, "BLOCK": _BLOCK}
    with torch.cuda.device(device):
        table, owners = _table(weights, radii)
        norms = torch.empty(len(owners), dtype=radii[0].dtype, device=device)
        factors = torch.empty(len(weights), dtype=radii[0].dtype, device=device)
        flag = norms if when is None else when.to(device, torch.uint8)
        _block_norms[(len(owners),)](table, owners, norms, DTYPE=_DTYPES[dtype], **kinds)
        _factors[(len(weights),)](table, norms, flag, factors, MASKED=when is not None, **kinds)
        _rescale[(len(owners),)](table, owners, factors, DTYPE=_DTYPES[dtype], **kinds)
    tracked = [weight for weight in weights if not weight.is_inference()]
    torch.autograd.graph.increment_version(tracked)  # as any other change in place


Key = tuple[torch.device, tuple[tuple[int, int, int], ...]]
Table = tuple[Tensor, Tensor]
_TABLES: dict[Key, Table] = {}  # each a function of its key alone, so none is ever out of date
_KEPT = 32
_IN_GRAPHS: list[Table] = []  # a captured graph reads its tables for as long as it lives


def _key(weights: Sequence[Tensor], radii: Sequence[Tensor]) -> Key:
    """Where the weights lie and how many numbers each has, and where the radii lie."""
    pairs = zip(weights, radii, strict=True)
    return weights[0].device, tuple((w.data_ptr(), w.numel(), r.data_ptr()) for w, r in pairs)


def _table(weights: Sequence[Tensor], radii: Sequence[Tensor]) -> Table:
    """A row for each weight, and for each block the row that it belongs to."""
    key = _key(weights, radii)
    if key not in _TABLES:
        if len(_TABLES) == _KEPT:
            del _TABLES[next(iter(_TABLES))]
        at, sizes, of_radii = np.array(key[1], np.int64).T
        blocks = -(-sizes // _BLOCK)
        rows = np.stack([at, sizes, np.cumsum(blocks) - blocks, of_radii], 1)
        owners = np.repeat(np.arange(len(sizes)), blocks)
        _TABLES[key] = (_sent(rows, key[0]), _sent(owners, key[0]))
    if torch.cuda.is_current_stream_capturing():
        _IN_GRAPHS.append(_TABLES[key])
    return _TABLES[key]


def _sent(numbers: np.ndarray, device: torch.device) -> Tensor:
    """On the device, without waiting for it."""
    return torch.from_numpy(numbers).pin_memory().to(device, non_blocking=True)


def _in_one_piece(weight: Tensor) -> bool:
    last = weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return weight.numel() > 0 and (last or weight.is_contiguous())
