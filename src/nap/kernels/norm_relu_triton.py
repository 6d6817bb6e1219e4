"""A norm over the last axis and the ReLU after it, in one pass each way (Triton): rows stay in registers.

Forward: a row is read once and its ReLU written, with the row's mean and 1/deviation. Backward: row and
gradient are read once and the row's gradient written; x̂ and where the ReLU was open are computed again.
Gradients of scale and offset are sums over all rows: each program sums its own, PyTorch the programs' sums.

A row is `chunks` blocks of a power of two, so that one of 6144 = 3·2048 numbers wastes no lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

WIDEST = 8192  # numbers in a row; beyond that they do not fit into the registers of a backward program
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_SMALL = 1024  # a program takes several rows at once, if they fit into so many numbers
# Numbers of a row in each thread. Backward each has six registers, besides those for what is in between.
FORWARD_NUMBERS, BACKWARD_NUMBERS = 24, 12


@triton.jit
def _with(some, one):
    return some + (one,)  # noqa: RUF005 (Triton knows no stars)


@triton.jit
def _norm_relu_forward(
    y, unit, scale, offset, h, stats, M,
    EPS: tl.constexpr, CENTRE: tl.constexpr, UNIT: tl.constexpr, SCALE: tl.constexpr, OFFSET: tl.constexpr,
    WIDE: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    inverse = tl.full([], 1.0, WIDE)
    if UNIT:
        inverse = inverse / tl.load(unit).to(WIDE)
    xs = ()
    total = tl.zeros([ROWS, BLOCK], WIDE)
    for k in tl.static_range(CHUNKS):
        c = k * BLOCK + tl.arange(0, BLOCK)[None, :]
        x = tl.load(y + row * W + c, mask=(row < M) & (c < W), other=0.0).to(WIDE) * inverse
        xs = _with(xs, x)
        total += x
    mean = tl.zeros([ROWS, 1], WIDE)
    if CENTRE:
        mean = tl.sum(total, 1)[:, None] / W
    total = tl.zeros([ROWS, BLOCK], WIDE)
    for k in tl.static_range(CHUNKS):
        c = k * BLOCK + tl.arange(0, BLOCK)[None, :]
        apart = tl.where(c < W, xs[k] - mean, 0.0)
        total += apart * apart
    rate = 1.0 / tl.sqrt(tl.sum(total, 1)[:, None] / W + EPS)
    for k in tl.static_range(CHUNKS):
        c = k * BLOCK + tl.arange(0, BLOCK)[None, :]
        value = (xs[k] - mean) * rate
        if SCALE:
            value = value * tl.load(scale + c, mask=c < W, other=0.0).to(WIDE)
        if OFFSET:
            value = value + tl.load(offset + c, mask=c < W, other=0.0).to(WIDE)
        value = tl.where(value <= 0, 0.0, value)  # what is not a number stays so
        tl.store(h + row * W + c, value.to(h.dtype.element_ty), mask=(row < M) & (c < W))
    tl.store(stats + row, mean, mask=row < M)
    tl.store(stats + M + row, rate, mask=row < M)


@triton.jit
def _both(a, b, c, d):
    return a + c, b + d


@triton.jit
def _norm_relu_backward(
    dh, y, unit, scale, offset, stats, dy, sums, M,
    CENTRE: tl.constexpr, UNIT: tl.constexpr, SCALE: tl.constexpr, OFFSET: tl.constexpr,
    WIDE: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    inverse = tl.full([], 1.0, WIDE)
    if UNIT:
        inverse = inverse / tl.load(unit).to(WIDE)
    factors, shifts, dfactors, dshifts = (), (), (), ()
    for k in tl.static_range(CHUNKS):
        c = k * BLOCK + tl.arange(0, BLOCK)[None, :]
        if SCALE:
            factors = _with(factors, tl.load(scale + c, mask=c < W, other=0.0).to(WIDE))
            dfactors = _with(dfactors, tl.zeros([ROWS, BLOCK], WIDE))
        if OFFSET:
            shifts = _with(shifts, tl.load(offset + c, mask=c < W, other=0.0).to(WIDE))
            dshifts = _with(dshifts, tl.zeros([ROWS, BLOCK], WIDE))
    for group in tl.range(tl.program_id(0), tl.cdiv(M, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (group * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
        mean = tl.load(stats + row, mask=row < M, other=0.0)
        rate = tl.load(stats + M + row, mask=row < M, other=0.0)
        slope, level = rate * inverse, -mean * rate  # from y to what is normalised
        xs, gs, new_dfactors, new_dshifts = (), (), (), ()
        ones, products = tl.zeros([ROWS, BLOCK], WIDE), tl.zeros([ROWS, BLOCK], WIDE)
        for k in tl.static_range(CHUNKS):
            c = k * BLOCK + tl.arange(0, BLOCK)[None, :]
            inside = (row < M) & (c < W)
            x = tl.load(y + row * W + c, mask=inside, other=0.0).to(WIDE) * slope + level
            g = tl.load(dh + row * W + c, mask=inside, other=0.0).to(WIDE)
            value = x
            if SCALE:
                value = value * factors[k]
            if OFFSET:
                value = value + shifts[k]
            g = tl.where(value <= 0, 0.0, g)
            if OFFSET:
                new_dshifts = _with(new_dshifts, dshifts[k] + g)
            if SCALE:
                new_dfactors = _with(new_dfactors, dfactors[k] + g * x)
                g = g * factors[k]
            ones += g
            products += g * x
            xs, gs = _with(xs, x), _with(gs, g)
        dfactors, dshifts = new_dfactors, new_dshifts
        if CENTRE:
            one, product = tl.reduce((ones, products), 1, _both)  # one wait for the other warps, not two
            one = one[:, None] / W * slope
        else:
            one, product = tl.zeros([ROWS, 1], WIDE), tl.sum(products, 1)
        product = product[:, None] / W * slope
        for k in tl.static_range(CHUNKS):
            c = k * BLOCK + tl.arange(0, BLOCK)[None, :]
            gradient = gs[k] * slope - one - xs[k] * product
            tl.store(dy + row * W + c, gradient.to(dy.dtype.element_ty), mask=(row < M) & (c < W))
    for k in tl.static_range(CHUNKS):
        c = k * BLOCK + tl.arange(0, BLOCK)[None, :]
        at = tl.program_id(0) * W + c
        if SCALE:
            tl.store(sums + at, tl.sum(dfactors[k], 0)[None, :], mask=c < W)
        if OFFSET:
            tl.store(sums + tl.num_programs(0) * W + at, tl.sum(dshifts[k], 0)[None, :], mask=c < W)


class Tile(NamedTuple):
    """What one program holds at a time: `rows` rows of `chunks` blocks, in the registers of `warps` warps."""

    rows: int
    chunks: int
    block: int
    warps: int

    @classmethod
    def of(cls, width: int, numbers_a_thread: int) -> Tile:
        """One row of a wide input, several of a narrow one."""
        padded = triton.next_power_of_2(width)
        chunks = 3 if padded >= _SMALL and 4 * width <= 3 * padded else 1
        block = padded // 4 if chunks == 3 else padded
        rows = max(1, _SMALL // padded)
        threads = triton.next_power_of_2(triton.cdiv(rows * chunks * block, numbers_a_thread))
        return cls(rows, chunks, block, min(16, max(4, threads // 32)))

    @property
    def on_a_processor(self) -> int:
        """How many backward programs have room in the registers of one processor."""
        return max(1, min(16 // self.warps, 8192 // (self.rows * self.chunks * self.block)))

    @property
    def blocks(self) -> dict[str, int]:
        return {"ROWS": self.rows, "CHUNKS": self.chunks, "BLOCK": self.block, "num_warps": self.warps}


if isinstance(_norm_relu_forward, triton.runtime.JITFunction):
    from torch.library import triton_op, wrap_triton
else:  # Triton's interpreter, for tests without a GPU: the compiler cannot look into what it runs
    triton_op: Any = custom_op  # type: ignore[no-redef]
    wrap_triton: Any = lambda kernel: kernel  # type: ignore[no-redef]  # noqa: E731


@triton_op("nap::norm_relu", mutates_args=())
def norm_relu(
    y: Tensor, unit: Tensor | None, scale: Tensor | None, offset: Tensor | None, eps: float, centre: bool
) -> tuple[Tensor, Tensor]:
    """ReLU(scale · norm(y/unit) + offset) over the last axis; and each row's mean and 1/deviation, of y/unit.

    Args:
        unit: one number, a constant for gradients: eps is relative to its square.
        centre: LayerNorm; else RMSNorm, whose means are zero.
    """
    y = y.contiguous()
    unit, scale, offset = (_in_one_piece(one) for one in (unit, scale, offset))
    width = y.shape[-1]
    rows = y.numel() // width
    tile = Tile.of(width, FORWARD_NUMBERS)
    h, stats = torch.empty_like(y), _wide_empty(y, 2, rows)
    wrap_triton(_norm_relu_forward)[(triton.cdiv(rows, tile.rows),)](
        y, _or(unit, y), _or(scale, y), _or(offset, y), h, stats, rows,
        EPS=eps, CENTRE=centre, **_flags(unit, scale, offset), WIDE=_wide(y), W=width, **tile.blocks,
    )  # fmt: skip
    return h, stats


@triton_op("nap::norm_relu_backward", mutates_args=())
def norm_relu_backward(
    dh: Tensor,
    y: Tensor,
    unit: Tensor | None,
    scale: Tensor | None,
    offset: Tensor | None,
    stats: Tensor,
    centre: bool,
) -> tuple[Tensor, Tensor]:
    """The gradient of y; and of scale and offset, (2, width), zeros for one that is not there."""
    dh, y = dh.contiguous(), y.contiguous()
    unit, scale, offset = (_in_one_piece(one) for one in (unit, scale, offset))
    width = y.shape[-1]
    tile = Tile.of(width, BACKWARD_NUMBERS)
    programs = _processors(y.device) * tile.on_a_processor
    flags = _flags(unit, scale, offset)
    dy, sums = torch.empty_like(dh), _wide_empty(dh, 2, programs, width)  # like y, compilers merge it with h
    if not (flags["SCALE"] and flags["OFFSET"]):
        sums.zero_()
    wrap_triton(_norm_relu_backward)[(programs,)](
        dh, y, _or(unit, y), _or(scale, y), _or(offset, y), stats, dy, sums, y.numel() // width,
        CENTRE=centre, **flags, WIDE=_wide(y), W=width, STAGES=_stages(y), **tile.blocks,
    )  # fmt: skip
    return dy, sums.sum(1)


@norm_relu.register_fake
def _norm_relu_shapes(y: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    y = y.contiguous()
    return torch.empty_like(y), _wide_empty(y, 2, y.numel() // y.shape[-1])


@norm_relu_backward.register_fake
def _norm_relu_backward_shapes(dh: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(dh.contiguous()), _wide_empty(dh, 2, dh.shape[-1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, _, ctx.centre = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])


def _gradients(ctx: Any, dh: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    scale, offset = ctx.saved_tensors[2:4]
    dy, (dscale, doffset) = torch.ops.nap.norm_relu_backward(dh, *ctx.saved_tensors, ctx.centre)
    gradients = (dy, None, _like(dscale, scale), _like(doffset, offset), None, None)
    return tuple(one if need else None for one, need in zip(gradients, ctx.needs_input_grad, strict=True))


norm_relu.register_autograd(_gradients, setup_context=_keep)


def _like(gradient: Tensor, parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else gradient.to(parameter.dtype)


def _flags(unit: Tensor | None, scale: Tensor | None, offset: Tensor | None) -> dict[str, bool]:
    return {"UNIT": unit is not None, "SCALE": scale is not None, "OFFSET": offset is not None}


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel's argument must be there, even one that it will not look at."""
    return other if tensor is None else tensor


def _in_one_piece(tensor: Tensor | None) -> Tensor | None:
    """As a vector, even a lone number: the compiler may hand one over by value."""
    return None if tensor is None else tensor.reshape(-1).contiguous()


def _wide(y: Tensor) -> Any:
    return tl.float64 if y.dtype == torch.float64 else tl.float32


def _wide_empty(y: Tensor, *shape: int) -> Tensor:
    return y.new_empty(shape, dtype=torch.promote_types(y.dtype, torch.float32))


def _stages(y: Tensor) -> int:
    """How many rows are under way at once, as many as fit into the memory that a program shares."""
    return {8: 1, 4: 2}.get(y.element_size(), 3)


def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 3  # Triton's interpreter takes the programs one after the other
    return torch.cuda.get_device_properties(device).multi_processor_count
