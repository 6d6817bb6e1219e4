"""SGD with Nesterov's momentum and the projection after it, for a whole network in five launches (Triton).

Each weight has a copy in bfloat16, which the network computes with and which gets the gradient. PyTorch's
way is to make the copies anew in each update, to turn gradients back to float32, to look at them, to step, to
measure the weights, to rescale them: some forty launches, twelve passes in float32. Here it is seven passes.
Squares are summed in a fixed order, so results repeat bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048  # numbers that one program reads
_COLUMNS = (
    8  # of the table: addresses of gradient, weight, momentum, copy and radius, size, first block, half
)
_GRADIENT, _WEIGHT, _MOMENTUM, _COPY, _RADIUS, _SIZE, _FIRST, _HALF = (
    tl.constexpr(column) for column in range(_COLUMNS)
)
_WIDTH = tl.constexpr(_COLUMNS)


@triton.jit
def _place(table, owners, BLOCK: tl.constexpr):
    """The row of the table that this program works for, and which numbers of its weight."""
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    row = table + _WIDTH * owner
    at = (block - tl.load(row + _FIRST)) * BLOCK + tl.arange(0, BLOCK)
    return owner, row, at, at < tl.load(row + _SIZE)


@triton.jit
def _numbers(row, column):
    return tl.load(row + column).to(tl.pointer_type(tl.float32))


@triton.jit
def _gradient(row, at, inside):
    if tl.load(row + _HALF) != 0:
        half = tl.load(row + _GRADIENT).to(tl.pointer_type(tl.bfloat16))
        value = tl.load(half + at, mask=inside, other=0.0).to(tl.float32)
    else:
        value = tl.load(_numbers(row, _GRADIENT) + at, mask=inside, other=0.0)
    return value


@triton.jit
def _note_copy(row, at, inside, value):
    if tl.load(row + _COPY) != 0:
        copy = tl.load(row + _COPY).to(tl.pointer_type(tl.bfloat16))
        tl.store(copy + at, value.to(tl.bfloat16), mask=inside)


@triton.jit
def _gradient_squares(table, owners, sums, BLOCK: tl.constexpr):
    _, row, at, inside = _place(table, owners, BLOCK)
    value = _gradient(row, at, inside)
    tl.store(sums + tl.program_id(0), tl.sum(value * value))


@triton.jit
def _norms(table, sums, norms, BLOCK: tl.constexpr):
    row = table + _WIDTH * tl.program_id(0)
    first, blocks = tl.load(row + _FIRST), tl.cdiv(tl.load(row + _SIZE), BLOCK)
    total = tl.zeros([1024], tl.float64)
    for start in range(0, blocks, 1024):
        at = start + tl.arange(0, 1024)
        total += tl.load(sums + first + at, mask=at < blocks, other=0.0).to(tl.float64)
    tl.store(norms + tl.program_id(0), tl.sqrt(tl.sum(total)).to(tl.float32))


@triton.jit
def _descend(table, owners, decays, rate, skip, sums, momentum, BLOCK: tl.constexpr):
    owner, row, at, inside = _place(table, owners, BLOCK)
    weight, average = _numbers(row, _WEIGHT) + at, _numbers(row, _MOMENTUM) + at
    old = tl.load(weight, mask=inside, other=0.0)
    new = old
    if tl.load(skip) == 0:
        slope = _gradient(row, at, inside) + tl.load(decays + owner) * old
        mean = momentum * tl.load(average, mask=inside, other=0.0) + slope
        new = old - tl.load(rate) * (slope + momentum * mean)
        tl.store(average, mean, mask=inside)
        tl.store(weight, new, mask=inside)
    tl.store(sums + tl.program_id(0), tl.sum(new * new))
    if tl.load(row + _RADIUS) == 0:  # else it is not in its place yet
        _note_copy(row, at, inside, new)


@triton.jit
def _rescale(table, owners, norms, BLOCK: tl.constexpr):
    owner, row, at, inside = _place(table, owners, BLOCK)
    if tl.load(row + _RADIUS) != 0:
        norm = tl.load(norms + owner)
        usable = (norm > 0) & (norm < float("inf"))  # a norm of zero or beyond has no direction to keep
        factor = tl.where(usable, tl.load(_numbers(row, _RADIUS)) / tl.where(usable, norm, 1.0), 1.0)
        weight = _numbers(row, _WEIGHT) + at
        value = tl.load(weight, mask=inside, other=0.0) * factor
        tl.store(weight, value, mask=inside)
        _note_copy(row, at, inside, value)


class Descent:
    """The same as `optimizer.step()` followed by W ← ρ·W/‖W‖, with the optimizer's own state.

    Args:
        optimizer: SGD with Nesterov's momentum, whose buffers are there; its learning rate is a tensor.
        parameters: what it trains, in float32, each in one piece of memory.
        radii: by place among the parameters, of those that stay on a sphere.
        skip: where this is not zero, nothing is updated.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[Tensor],
        radii: Mapping[int, Tensor],
        skip: Tensor,
    ):
        options = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        (self._momentum,) = {group["momentum"] for group in optimizer.param_groups}
        assert all(group["nesterov"] and not group["maximize"] for group in optimizer.param_groups)
        self._rate, self._skip = optimizer.param_groups[0]["lr"], skip
        self.copies = {
            k: p.detach().to(torch.bfloat16).requires_grad_() for k, p in enumerate(parameters) if p.ndim >= 2
        }
        self._parameters = list(parameters)
        self.leaves = [self.copies.get(k, p) for k, p in enumerate(parameters)]  # what gets the gradients
        self._held = [optimizer.state[p]["momentum_buffer"] for p in parameters], dict(radii)
        device = skip.device
        decays = [options[id(p)]["weight_decay"] for p in parameters]
        self._decays = torch.tensor(decays, dtype=torch.float32, device=device)
        sizes = np.array([p.numel() for p in parameters], np.int64)
        blocks = -(-sizes // _BLOCK)
        self._owners = torch.from_numpy(np.repeat(np.arange(len(sizes)), blocks)).to(device)
        self._rows = self._addresses(sizes, np.cumsum(blocks) - blocks)
        self._table = torch.from_numpy(self._rows).to(device)
        self._sums = torch.empty(len(self._owners), device=device)
        self._norms = torch.empty(len(sizes), device=device)

    def _addresses(self, sizes: np.ndarray, first: np.ndarray) -> np.ndarray:
        momenta, radii = self._held
        rows = np.zeros((len(sizes), _COLUMNS), np.int64)
        for k, (weight, average) in enumerate(zip(self._parameters, momenta, strict=True)):
            assert weight.dtype == average.dtype == torch.float32
            assert _in_one_piece(weight)
            assert average.stride() == weight.stride()
            places = [0, weight.data_ptr(), average.data_ptr()]
            places += [tensors[k].data_ptr() if k in tensors else 0 for tensors in (self.copies, radii)]
            rows[k] = [*places, sizes[k], first[k], k in self.copies]
        return rows

    @torch.no_grad()
    def refresh_(self) -> None:
        """Make the copies anew: the weights were changed by someone else."""
        for k, copy in self.copies.items():
            copy.copy_(self._parameters[k])

    def norms(self, gradients: Sequence[Tensor]) -> Tensor:
        """Of each gradient, one for each of `leaves`; `step_` will descend along these.

        While a CUDA graph is recorded nothing can be sent to the device: call `send_` when it is there.
        """
        self._gradients = [_laid_out(g, leaf) for g, leaf in zip(gradients, self.leaves, strict=True)]
        self._rows[:, 0] = [gradient.data_ptr() for gradient in self._gradients]
        if not (self._table.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.send_()
        norms = torch.empty_like(self._norms)
        _gradient_squares[(len(self._owners),)](self._table, self._owners, self._sums, BLOCK=_BLOCK)
        _norms[(len(norms),)](self._table, self._sums, norms, BLOCK=_BLOCK)
        return norms

    def send_(self) -> None:
        """Where the gradients of the last call lie: tell the device."""
        self._table.copy_(torch.from_numpy(self._rows))

    @torch.no_grad()
    def step_(self) -> None:
        """One update along the gradients of the last call, weights back to their norms, new copies."""
        grid = (len(self._owners),)
        _descend[grid](
            self._table, self._owners, self._decays, self._rate, self._skip, self._sums, self._momentum,
            BLOCK=_BLOCK,
        )  # fmt: skip
        if self._held[1]:
            _norms[(len(self._norms),)](self._table, self._sums, self._norms, BLOCK=_BLOCK)
            _rescale[grid](self._table, self._owners, self._norms, BLOCK=_BLOCK)
        torch.autograd.graph.increment_version([*self._parameters, *self.copies.values()])


def _laid_out(gradient: Tensor, leaf: Tensor) -> Tensor:
    """In the same order in memory as what it belongs to."""
    assert gradient.dtype == leaf.dtype
    return gradient if gradient.stride() == leaf.stride() else torch.empty_like(leaf).copy_(gradient)


def _in_one_piece(weight: Tensor) -> bool:
    last = weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return last or weight.is_contiguous()
