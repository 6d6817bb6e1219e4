"""SGD with Nesterov's momentum and the projection after it, for a whole network in five launches (Triton).

Each weight has a copy in bfloat16, which the network computes with and which gets the gradient. PyTorch's
way is to make the copies anew in each update, to turn gradients back to float32, to look at them, to step, to
measure the weights, to rescale them: some forty launches, and twelve passes over the weights in float32. Here
it is seven and a half. Squares are summed in a fixed order, so results repeat bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048  # numbers that one program reads
# of the table: addresses of gradient, weight, momentum, copy, radius and rate; size, first block
_COLUMNS = 8
_GRADIENT, _WEIGHT, _MOMENTUM, _COPY, _RADIUS, _RATE, _SIZE, _FIRST = (
    tl.constexpr(column) for column in range(_COLUMNS)
)
_WIDTH = tl.constexpr(_COLUMNS)


@triton.jit
def _place(table, owners, BLOCK: tl.constexpr):
    """The row of the table for this program, the first number it is for, and how many the weight has."""
    block = tl.program_id(0)
    owner = tl.load(owners + block)
    row = table + _WIDTH * owner
    return owner, row, (block - tl.load(row + _FIRST)) * BLOCK, tl.load(row + _SIZE)


@triton.jit
def _tensor(row, column, DTYPE: tl.constexpr):
    return tl.multiple_of(tl.load(row + column).to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def _read(row, column, at, size, DTYPE: tl.constexpr, FULL: tl.constexpr):
    """Numbers in float32. Without a mask a thread reads and writes several at once."""
    if FULL:
        value = tl.load(_tensor(row, column, DTYPE) + at)
    else:
        value = tl.load(_tensor(row, column, DTYPE) + at, mask=at < size, other=0.0)
    return value.to(tl.float32)


@triton.jit
def _write(row, column, at, size, value, DTYPE: tl.constexpr, FULL: tl.constexpr):
    if FULL:
        tl.store(_tensor(row, column, DTYPE) + at, value.to(DTYPE))
    else:
        tl.store(_tensor(row, column, DTYPE) + at, value.to(DTYPE), mask=at < size)


@triton.jit
def _gradient(row, at, size, FULL: tl.constexpr):
    if tl.load(row + _COPY) != 0:  # a weight with a copy: that has the gradient
        value = _read(row, _GRADIENT, at, size, tl.bfloat16, FULL)
    else:
        value = _read(row, _GRADIENT, at, size, tl.float32, FULL)
    return value


@triton.jit
def _gradient_square(row, at, size, FULL: tl.constexpr):
    value = _gradient(row, at, size, FULL)
    return tl.sum(value * value)


@triton.jit
def _gradient_squares(table, owners, sums, BLOCK: tl.constexpr):
    _, row, start, size = _place(table, owners, BLOCK)
    at = start + tl.arange(0, BLOCK)
    if start + BLOCK <= size:
        total = _gradient_square(row, at, size, True)
    else:
        total = _gradient_square(row, at, size, False)
    tl.store(sums + tl.program_id(0), total)


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
def _moved(row, at, size, decay, rate, skip, momentum, FULL: tl.constexpr):
    """Update these numbers; the sum of their squares."""
    old = _read(row, _WEIGHT, at, size, tl.float32, FULL)
    new = old
    if skip == 0:
        slope = _gradient(row, at, size, FULL) + decay * old
        mean = momentum * _read(row, _MOMENTUM, at, size, tl.float32, FULL) + slope
        new = old - rate * (slope + momentum * mean)
        _write(row, _MOMENTUM, at, size, mean, tl.float32, FULL)
        _write(row, _WEIGHT, at, size, new, tl.float32, FULL)
    if (tl.load(row + _COPY) != 0) & (tl.load(row + _RADIUS) == 0):  # else it is not in its place yet
        _write(row, _COPY, at, size, new, tl.bfloat16, FULL)
    return tl.sum(new * new)


@triton.jit
def _descend(table, owners, decays, skip, sums, momentum, BLOCK: tl.constexpr):
    owner, row, start, size = _place(table, owners, BLOCK)
    at = start + tl.arange(0, BLOCK)
    decay, skip = tl.load(decays + owner), tl.load(skip)
    rate = tl.load(tl.load(row + _RATE).to(tl.pointer_type(tl.float32)))
    if start + BLOCK <= size:
        total = _moved(row, at, size, decay, rate, skip, momentum, True)
    else:
        total = _moved(row, at, size, decay, rate, skip, momentum, False)
    tl.store(sums + tl.program_id(0), total)


@triton.jit
def _scale(row, at, size, factor, FULL: tl.constexpr):
    value = _read(row, _WEIGHT, at, size, tl.float32, FULL) * factor
    _write(row, _WEIGHT, at, size, value, tl.float32, FULL)
    if tl.load(row + _COPY) != 0:
        _write(row, _COPY, at, size, value, tl.bfloat16, FULL)


@triton.jit
def _rescale(table, owners, norms, BLOCK: tl.constexpr):
    owner, row, start, size = _place(table, owners, BLOCK)
    at = start + tl.arange(0, BLOCK)
    if tl.load(row + _RADIUS) != 0:
        norm = tl.load(norms + owner)
        usable = (norm > 0) & (norm < float("inf"))  # a norm of zero or beyond has no direction to keep
        radius = tl.load(tl.load(row + _RADIUS).to(tl.pointer_type(tl.float32)))
        factor = tl.where(usable, radius / tl.where(usable, norm, 1.0), 1.0)
        if start + BLOCK <= size:
            _scale(row, at, size, factor, True)
        else:
            _scale(row, at, size, factor, False)


class FusedSGD:
    """The same as `optimizer.step()` followed by W ← ρ·W/‖W‖, with the optimizer's own state.

    Args:
        optimizers: SGD with Nesterov's momentum, whose buffers are there, and whose learning rates are
            tensors.
        parameters: what they train, in float32, each in one piece of memory.
        radii: by place among the parameters, of those that stay on a sphere.
        skip: where this is not zero, nothing is updated.
        copies: by place, the weights in bfloat16, of whoever has made them already.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        parameters: Sequence[Tensor],
        radii: Mapping[int, Tensor],
        skip: Tensor,
        copies: Mapping[int, Tensor] | None = None,
    ):
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        options = {id(p): group for group in groups for p in group["params"]}
        (self._momentum,) = {group["momentum"] for group in groups}
        assert all(group["nesterov"] and not group["maximize"] for group in groups)
        self._rates, self._skip = [options[id(p)]["lr"] for p in parameters], skip
        self.copies = copies or {
            k: p.detach().to(torch.bfloat16).requires_grad_() for k, p in enumerate(parameters) if p.ndim >= 2
        }
        self._parameters = list(parameters)
        self.leaves = [self.copies.get(k, p) for k, p in enumerate(parameters)]  # what gets the gradients
        states = {p: state for optimizer in optimizers for p, state in optimizer.state.items()}
        self._momenta = [states[p]["momentum_buffer"] for p in parameters]
        self._radii = dict(radii)
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
        rows = np.zeros((len(sizes), _COLUMNS), np.int64)
        for k, (weight, average) in enumerate(zip(self._parameters, self._momenta, strict=True)):
            assert weight.dtype == average.dtype == torch.float32
            assert _in_one_piece(weight)
            assert average.stride() == weight.stride()
            places = [0, weight.data_ptr(), average.data_ptr()]
            places += [tensors[k].data_ptr() if k in tensors else 0 for tensors in (self.copies, self._radii)]
            assert not any(place % 16 for place in places[:4])
            rows[k] = [*places, self._rates[k].data_ptr(), sizes[k], first[k]]
        return rows

    @torch.no_grad()
    def refresh_(self, radii: Mapping[int, Tensor]) -> None:
        """Make the copies anew, and take over these radii: weights were changed by someone else."""
        for k, copy in self.copies.items():
            copy.copy_(self._parameters[k])
        for k, radius in self._radii.items():
            radius.copy_(radii[k])

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
            self._table, self._owners, self._decays, self._skip, self._sums, self._momentum, BLOCK=_BLOCK,
        )  # fmt: skip
        if self._radii:
            _norms[(len(self._norms),)](self._table, self._sums, self._norms, BLOCK=_BLOCK)
            _rescale[grid](self._table, self._owners, self._norms, BLOCK=_BLOCK)
        torch.autograd.graph.increment_version([*self._parameters, *self.copies.values()])


def _laid_out(gradient: Tensor, leaf: Tensor) -> Tensor:
    """In the same order in memory as what it belongs to."""
    assert gradient.dtype == leaf.dtype
    as_it_is = gradient.stride() == leaf.stride() and gradient.data_ptr() % 16 == 0
    return gradient if as_it_is else torch.empty_like(leaf).copy_(gradient)


def _in_one_piece(weight: Tensor) -> bool:
    last = weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last)
    return last or weight.is_contiguous()
