"""Sums of squares, Adam and projection of stacked weights in the fewest passes over memory (CUDA, Triton).

A member of a stack is one dense stretch of memory, whatever the order of its axes, so the kernels see
(members, numbers), in blocks. PyTorch's own reductions and broadcast products over such shapes reach a
third to a half of the bandwidth; these reach nine tenths. Sums are taken in a fixed order: results repeat
bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048  # numbers that one program reads


@triton.jit
def _square_sums(x, sums, size, width, column, BLOCK: tl.constexpr):
    block, member = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + member * size + at, mask=at < size, other=0.0)
    tl.store(sums + member * width + column + block, tl.sum(value * value))


@triton.jit
def _adam(
    w, grad, mean, square, step, skip, log_betas, sums,
    rate, beta1, beta2, eps, size, width, column, BLOCK: tl.constexpr,
):  # fmt: skip
    block, member = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    at = member * size + at
    update = tl.load(skip) == 0
    steps = tl.load(step).to(tl.float64) + 1  # float64: 1 − 0.999 has four digits left in float32
    correction1 = (1 - tl.exp2(steps * tl.load(log_betas))).to(tl.float32)
    correction2 = tl.sqrt((1 - tl.exp2(steps * tl.load(log_betas + 1))).to(tl.float32))
    old = tl.load(w + at, mask=inside, other=0.0)
    g = tl.load(grad + at, mask=inside, other=0.0)
    m = tl.load(mean + at, mask=inside, other=0.0)
    v = tl.load(square + at, mask=inside, other=0.0)
    m += (1 - beta1) * (g - m)
    v = beta2 * v + (1 - beta2) * g * g
    new = old - (rate / correction1) * m / (tl.sqrt(v) / correction2 + eps)
    tl.store(w + at, new, mask=inside & update)
    tl.store(mean + at, m, mask=inside & update)
    tl.store(square + at, v, mask=inside & update)
    now = tl.where(update, new, old)
    tl.store(sums + member * width + column + block, tl.sum(tl.where(inside, now * now, 0.0)))


@triton.jit
def _rescale(w, sums, radii, size, width, column, blocks, BLOCK: tl.constexpr, ROW: tl.constexpr):
    block, member = tl.program_id(0), tl.program_id(1).to(tl.int64)
    parts = tl.arange(0, ROW)
    total = tl.sum(tl.load(sums + member * width + column + parts, mask=parts < blocks, other=0.0))
    usable = (total > 0) & (total < float("inf"))  # a norm of zero or beyond has no direction to keep
    factor = tl.where(usable, tl.load(radii + member) / tl.sqrt(tl.where(usable, total, 1.0)), 1.0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    at = member * size + at
    tl.store(w + at, tl.load(w + at, mask=inside) * factor, mask=inside)


def member_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of each member over all of these stacks taken as one vector."""
    columns, width = _columns([_size(t) for t in tensors])
    sums = tensors[0].new_empty(len(tensors[0]), width)
    for tensor, column in zip(tensors, columns, strict=True):
        size = _size(tensor)
        _square_sums[_grid(size, tensor)](tensor, sums, size, width, column, BLOCK=_BLOCK)
    return sums.sum(1).sqrt()


class FusedAdam:
    """A step of Adam and the projection after it, in nine passes over the weights instead of twelve.

    The same as `optimizer.step()` followed by W ← ρ·W/‖W‖, with the optimizer's own state.

    Args:
        optimizer: a plain Adam that has made a step, so that it has its state.
        parameters: what it trains, stacked.
        radii: a number a member for each parameter that stays on a sphere.
        skip: where this is not zero, nothing is updated.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, Tensor],
        radii: Mapping[str, Tensor],
        skip: Tensor,
    ):
        (group,) = optimizer.param_groups
        assert not any(group[option] for option in ("weight_decay", "amsgrad", "maximize"))
        self._rate, self._betas, self._eps = group["lr"], group["betas"], group["eps"]
        self._stacks = [(w.detach(), optimizer.state[w], radii.get(name)) for name, w in parameters.items()]
        self._live = list(parameters.values())  # whose `grad` is new in each step
        self._skip = skip
        self._columns, width = _columns([_size(w) for w in self._live])
        self._sums = skip.new_empty(len(self._live[0]), width)
        logs = [math.log2(beta) for beta in self._betas]
        self._log_betas = torch.tensor(logs, dtype=torch.float64, device=skip.device)

    def __call__(self) -> None:
        width = self._sums.shape[1]
        for (w, state, _), live, column in zip(self._stacks, self._live, self._columns, strict=True):
            size = _size(w)
            grad: Any = live.grad
            assert _steps(grad) == _steps(w), "autograd lays gradients out as their parameters"
            _adam[_grid(size, w)](
                w, grad, state["exp_avg"], state["exp_avg_sq"], state["step"], self._skip,
                self._log_betas, self._sums, self._rate, *self._betas, self._eps,
                size, width, column, BLOCK=_BLOCK,
            )  # fmt: skip
        steps = [state["step"] for _, state, _ in self._stacks]
        torch._foreach_add_(steps, [1 - self._skip] * len(steps))
        for (w, _, radius), column in zip(self._stacks, self._columns, strict=True):
            if radius is not None:
                size = _size(w)
                blocks = triton.cdiv(size, _BLOCK)
                _rescale[_grid(size, w)](
                    w, self._sums, radius, size, width, column, blocks,
                    BLOCK=_BLOCK, ROW=triton.next_power_of_2(blocks),
                )  # fmt: skip


def _size(stack: Tensor) -> int:
    """Numbers in one member, which lie side by side, as the members do."""
    size = stack[0].numel()
    last = sum((length - 1) * step for length, step in _steps(stack))
    assert last == stack.numel() - 1, (stack.shape, stack.stride())
    return size


def _steps(stack: Tensor) -> list[tuple[int, int]]:
    """Lengths of the axes and the steps along them in memory; an axis of one has none."""
    return [(n, step) for n, step in zip(stack.shape, stack.stride(), strict=True) if n > 1]


def _columns(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where the sums of each stack begin in a row of sums, and how long the row is."""
    blocks = [triton.cdiv(size, _BLOCK) for size in sizes]
    return [sum(blocks[:k]) for k in range(len(blocks))], sum(blocks)


def _grid(size: int, stack: Tensor) -> tuple[int, int]:
    return triton.cdiv(size, _BLOCK), len(stack)
