"""Norms that are a factor and a shift for each sample and channel, in four passes of their own (Triton).

Forward: moments, then apply. Backward: two sums for each sample and channel, then the gradient. What lies
between, from moments to factor and shift, is small, (N, C), and is left to PyTorch and its autograd: so
one pair of passes can serve every such norm, LayerNorm, LayerNorm followed by BatchNorm, with or without
ReLU. `Norm` uses it for the first alone; what follows a norm is not part of it yet.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nap.kernels import statistics as plain

Coefficients = Callable[..., plain.Affine]  # (mean, variance, *parameters) → factor, shift
_PROGRAMS = 512  # of a pass, at least: about four for each processor of a large GPU


@triton.jit
def _moments(
    x, means, squares, P, C, LENGTH, xn, xp, xc, WIDE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr
):
    n, part = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    mean, square, count = tl.zeros([BC], WIDE), tl.zeros([BC], WIDE), tl.zeros([1], WIDE)
    for start in range(part * LENGTH, tl.minimum(P, (part + 1) * LENGTH), BP):
        p = start + tl.arange(0, BP)
        seen = p < tl.minimum(P, (part + 1) * LENGTH)
        mask = seen[:, None] & (c < C)[None, :]
        value = tl.load(x + n * xn + p[:, None] * xp + c[None, :] * xc, mask=mask, other=0.0).to(WIDE)
        some = tl.sum(seen.to(WIDE), 0)
        block_mean = tl.sum(value, 0) / some
        centred = tl.where(mask, value - block_mean[None, :], 0.0)
        step, total = block_mean - mean, count + some
        square += tl.sum(centred * centred, 0) + step * step * (count * some / total)
        mean += step * (some / total)
        count = total
    at = (n * tl.num_programs(2) + part) * C + c
    tl.store(means + at, mean, mask=c < C)
    tl.store(squares + at, square, mask=c < C)


@triton.jit
def _apply(
    x, y, factor, shift, P, C, xn, xp, xc,
    RELU: tl.constexpr, WIDE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) // tl.cdiv(P, BP)  # the only axis of a grid that may be long
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    p = tl.program_id(0) % tl.cdiv(P, BP) * BP + tl.arange(0, BP)
    mask = (p < P)[:, None] & (c < C)[None, :]
    at = n * xn + p[:, None] * xp + c[None, :] * xc
    a = tl.load(factor + n * C + c, mask=c < C, other=0.0)
    b = tl.load(shift + n * C + c, mask=c < C, other=0.0)
    value = tl.load(x + at, mask=mask, other=0.0).to(WIDE) * a[None, :] + b[None, :]
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _sums(
    x, dy, mean, factor, shift, ones, products, P, C, LENGTH, xn, xp, xc,
    RELU: tl.constexpr, WIDE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n, part = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    m = tl.load(mean + n * C + c, mask=c < C, other=0.0)
    a = tl.load(factor + n * C + c, mask=c < C, other=0.0)
    b = tl.load(shift + n * C + c, mask=c < C, other=0.0)
    one, product = tl.zeros([BC], WIDE), tl.zeros([BC], WIDE)
    for start in range(part * LENGTH, tl.minimum(P, (part + 1) * LENGTH), BP):
        p = start + tl.arange(0, BP)
        mask = (p < tl.minimum(P, (part + 1) * LENGTH))[:, None] & (c < C)[None, :]
        at = n * xn + p[:, None] * xp + c[None, :] * xc
        value = tl.load(x + at, mask=mask, other=0.0).to(WIDE)
        d = tl.load(dy + at, mask=mask, other=0.0).to(WIDE)
        if RELU:
            d = tl.where(value * a[None, :] + b[None, :] > 0, d, 0.0)
        one += tl.sum(d, 0)
        product += tl.sum(tl.where(mask, d * (value - m[None, :]), 0.0), 0)
    at = (n * tl.num_programs(2) + part) * C + c
    tl.store(ones + at, one, mask=c < C)
    tl.store(products + at, product, mask=c < C)


@triton.jit
def _gradient(
    x, dy, dx, mean, factor, shift, level, slope, P, C, xn, xp, xc,
    RELU: tl.constexpr, WIDE: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) // tl.cdiv(P, BP)  # the only axis of a grid that may be long
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    p = tl.program_id(0) % tl.cdiv(P, BP) * BP + tl.arange(0, BP)
    mask = (p < P)[:, None] & (c < C)[None, :]
    at = n * xn + p[:, None] * xp + c[None, :] * xc
    row, inside = n * C + c, c < C
    m = tl.load(mean + row, mask=inside, other=0.0)
    a = tl.load(factor + row, mask=inside, other=0.0)
    value = tl.load(x + at, mask=mask, other=0.0).to(WIDE)
    d = tl.load(dy + at, mask=mask, other=0.0).to(WIDE)
    if RELU:
        b = tl.load(shift + row, mask=inside, other=0.0)
        d = tl.where(value * a[None, :] + b[None, :] > 0, d, 0.0)
    u = tl.load(level + row, mask=inside, other=0.0)
    v = tl.load(slope + row, mask=inside, other=0.0)
    gradient = a[None, :] * d + u[None, :] + v[None, :] * (value - m[None, :])
    tl.store(dx + at, gradient.to(dx.dtype.element_ty), mask=mask)


class _Shape:
    """How images (N, C, …) lie in memory, and in which blocks a pass goes over them."""

    def __init__(self, x: Tensor):
        self.n, self.c = x.shape[:2]
        self.p = x[0, 0].numel()
        last = x.stride(1) == 1 and self.c > 1
        self.strides = (x.stride(0), self.c, 1) if last else (x.stride(0), 1, self.p)
        self.bc = min(64 if last else 4, triton.next_power_of_2(self.c))
        self.bp = min(triton.next_power_of_2(self.p), max(1, 4096 // self.bc))
        self.columns = triton.cdiv(self.c, self.bc)
        self.wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        self.blocks = {
            "WIDE": tl.float64 if self.wide == torch.float64 else tl.float32,
            "BP": self.bp,
            "BC": self.bc,
        }
        wanted = triton.cdiv(_PROGRAMS, self.n * self.columns)
        parts = max(1, min(wanted, triton.cdiv(self.p, self.bp)))
        self.length = triton.cdiv(triton.cdiv(self.p, parts), self.bp) * self.bp
        self.parts = triton.cdiv(self.p, self.length)

    @property
    def reducing(self) -> tuple[int, int, int]:
        return self.n, self.columns, self.parts

    @property
    def mapping(self) -> tuple[int, int]:
        return self.n * triton.cdiv(self.p, self.bp), self.columns

    def partial(self, x: Tensor) -> Tensor:
        return torch.empty(self.n, self.parts, self.c, dtype=self.wide, device=x.device)


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each sample's channels, (N, C) each."""
    shape = _Shape(x)
    means, squares = shape.partial(x), shape.partial(x)
    with _on(x):
        _moments[shape.reducing](
            x, means, squares, shape.p, shape.c, shape.length, *shape.strides, **shape.blocks
        )
    if shape.parts == 1:
        return means.squeeze(1), squares.squeeze(1) / shape.p
    edges = torch.arange(shape.parts + 1, device=x.device) * shape.length
    counts = edges.clamp(max=shape.p).diff().to(shape.wide)[:, None]
    mean = (means * counts).sum(1) / shape.p
    return mean, (squares + counts * (means - mean[:, None]).square()).sum(1) / shape.p


class _ByMoments(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, coefficients: Coefficients, relu: bool, *parameters: Tensor) -> Tensor:
        shape = _Shape(x)
        small = [*moments(x), *(p.detach() for p in parameters)]
        with torch.enable_grad():
            small = [part.requires_grad_() for part in small]
            affine = coefficients(*small)
        factor, shift = (part.detach().contiguous() for part in affine)
        y = torch.empty_like(x)
        with _on(x):
            _apply[shape.mapping](
                x, y, factor, shift, shape.p, shape.c, *shape.strides, RELU=relu, **shape.blocks
            )
        ctx.save_for_backward(x, *parameters)
        ctx.coefficients, ctx.relu, ctx.small, ctx.affine = coefficients, relu, small, affine
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        if torch.is_grad_enabled() or _watched(dy):  # gradients of gradients, or of a batch of outputs
            return _plain_gradients(ctx, dy, x, *parameters)
        shape = _Shape(x)
        dy = dy.contiguous(memory_format=_layout(x))
        mean = ctx.small[0].detach()
        factor, shift = (part.detach().contiguous() for part in ctx.affine)
        ones, products = shape.partial(x), shape.partial(x)
        with _on(x):
            _sums[shape.reducing](
                x, dy, mean, factor, shift, ones, products,
                shape.p, shape.c, shape.length, *shape.strides, RELU=ctx.relu, **shape.blocks,
            )  # fmt: skip
        ones, products = ones.sum(1), products.sum(1)
        # of factor · x + shift: Σ dy · x and Σ dy; then through factor and shift to the moments
        small = torch.autograd.grad(
            ctx.affine, ctx.small, (products + mean * ones, ones), retain_graph=True, allow_unused=True
        )
        level, slope = (torch.zeros_like(mean) if part is None else part for part in small[:2])
        level, slope = (level / shape.p).contiguous(), (2 * slope / shape.p).contiguous()
        dx = torch.empty_like(x)
        with _on(x):
            _gradient[shape.mapping](
                x, dy, dx, mean, factor, shift, level, slope,
                shape.p, shape.c, *shape.strides, RELU=ctx.relu, **shape.blocks,
            )  # fmt: skip
        return dx, None, None, *small[2:]


def _plain_gradients(ctx: Any, dy: Tensor, *inputs: Tensor) -> tuple[Tensor | None, ...]:
    """What autograd makes of PyTorch's own operations, for the inputs that need a gradient."""
    again = torch.is_grad_enabled()
    needed = (ctx.needs_input_grad[0], *ctx.needs_input_grad[3:])
    with torch.enable_grad():
        if not again:
            inputs = tuple(t.detach().requires_grad_(need) for t, need in zip(inputs, needed, strict=True))
        y = in_plain_words(inputs[0], ctx.coefficients, ctx.relu, *inputs[1:])
        wanted = [part for part, need in zip(inputs, needed, strict=True) if need]
        gradients = iter(torch.autograd.grad(y, wanted, dy, create_graph=again))
    dx, *rest = (next(gradients) if need else None for need in needed)
    return dx, None, None, *rest


def by_moments(x: Tensor, coefficients: Coefficients, *parameters: Tensor, relu: bool = False) -> Tensor:
    """x · factor + shift, where `coefficients` finds them from mean, variance and `parameters`.

    Images (N, C, …) must lie in memory either plainly or channels-last.
    """
    y: Tensor = _ByMoments.apply(x, coefficients, relu, *parameters)
    return y


def fits(x: Tensor) -> bool:
    """Whether `by_moments` can take it: plain memory, and nobody who watches or transforms operations.

    Under `torch.func`, forward-mode AD, tracing and the like only PyTorch's own operations will do.
    """
    return (
        not _watched(x)
        and x.ndim in (3, 4)
        and 0 < x.numel() < 2**31
        and (x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)))
        and x.dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
        and works(x.device)
    )


def _watched(x: Tensor) -> bool:
    return (
        type(x) not in (Tensor, Parameter)
        or torch._C._are_functorch_transforms_active()
        or not _has_memory(x)
        or torch.jit.is_tracing()
        or forward_ad._current_level >= 0
        or torch.overrides._get_current_function_mode() is not None
        or _get_current_dispatch_mode() is not None
    )


def _has_memory(x: Tensor) -> bool:
    """Not so for what stands for a batch of tensors, as in `torch.autograd.grad(is_grads_batched=True)`."""
    try:
        x.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


def _on(x: Tensor) -> AbstractContextManager[Any]:
    """Kernels are launched on the device that is current: make it that of the images."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


_works: dict[torch.device, bool] = {}


def works(device: torch.device) -> bool:
    """Whether kernels can be made for this GPU and compute what PyTorch computes. Tried once.

    It takes a C compiler, and not too old a card. Not tried while a CUDA graph is being recorded: what is
    tried then would be in the graph.
    """
    if device not in _works:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        try:
            _compare(device)
            _works[device] = True
        except Exception as error:  # whatever it is, there is another way
            _works[device] = False
            warnings.warn(
                f"images on {device} are normalised by group_norm, which is slower: Triton made no kernels "
                f"that work ({error})",
                stacklevel=2,
            )
    return _works[device]


def _compare(device: torch.device) -> None:
    """Raise where a small image and its gradient come out otherwise than from PyTorch's own operations."""
    with torch.enable_grad():
        x = torch.arange(2.0 * 5 * 7 * 7, device=device).sin().view(2, 5, 7, 7).requires_grad_()
        results = []
        for y in (by_moments(x, plain.layer_norm), in_plain_words(x, plain.layer_norm, False)):
            results.append(torch.stack([y.detach(), torch.autograd.grad(y, x, x.detach().cos())[0]]))
    error = (results[0] - results[1]).abs().max().item()
    if not error < 1e-4:
        raise ArithmeticError(f"results differ by {error:.1e}")


def in_plain_words(x: Tensor, coefficients: Coefficients, relu: bool, *parameters: Tensor) -> Tensor:
    """The same from PyTorch's own operations."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    y = plain.apply(wide, coefficients(*plain.moments(wide), *parameters)).to(x.dtype)
    return y.relu() if relu else y


def _layout(x: Tensor) -> torch.memory_format:
    last = x.ndim == 4 and x.stride(1) == 1 and x.shape[1] > 1
    return torch.channels_last if last else torch.contiguous_format
