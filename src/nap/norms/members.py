"""A norm for a stack of layers, (members, in, out): each member has a scale and an offset of its own.

The members are listed on axes of what is normalised, or `vmap` maps over their weights. Inside of `vmap` the
norm sees one member at a time; so its scale and offset are mapped over together with the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nap.norms.norm import Norm

_functorch = torch._C._functorch
_running: list[int] = []  # the members that loops in the place of `vmap` are at, innermost last


@contextmanager
def member(index: int | None) -> Iterator[None]:
    """Inside, norms that `vmap` would map over are those of this member; None: of no other than before."""
    _running.extend([] if index is None else [index])
    try:
        yield
    finally:
        del _running[len(_running) - (index is not None) :]


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor that `vmap` has wrapped; elsewhere the tensor itself.

    >>> weight = torch.randn(3, 4)
    >>> torch.vmap(lambda w: w * (unwrapped(w) is weight))(weight).equal(weight)
    True
    """
    while _functorch.is_batchedtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


class MemberNorm(Norm):
    """LayerNorm or RMSNorm over the last axis; scale and offset are (members, width).

    eps is relative to each member's own weights, so each is scale-invariant by itself.

    Args:
        members: how many there are, along each axis of members.
        axes: where these axes are in what is normalised, counted from its end; in the same order. None of
            them where `vmap` maps over the weights.

    >>> x, weight = torch.randn(3, 5, 8), torch.randn(3, 8, 4)
    >>> norm = MemberNorm(4, members=(3,), axes=(-3,))
    >>> scales = torch.tensor([0.5, 1.0, 100.0])[:, None, None]
    >>> torch.allclose(norm(x @ weight, weight), norm(x @ (scales * weight), scales * weight), atol=1e-5)
    True
    """

    def __init__(self, width: int, *, members: Sequence[int], axes: Sequence[int], **options: Any):
        super().__init__(width, **options)
        self.members, self.axes = tuple(members), tuple(axes)
        for name, parameter in list(self.named_parameters()):
            self.register_parameter(name, nn.Parameter(parameter.detach().expand(*members, width).clone()))

    def forward(self, y: Tensor, *weights: Tensor, scale: Tensor | None = None) -> Tensor:
        if not self.axes:
            return Norm.forward(self._of_one(weights), y, *weights, scale=scale)
        x = y.float() if y.dtype in (torch.bfloat16, torch.float16) else y
        if self.relative:
            x = x / self._over_members(self._sizes(weights)).to(x.dtype)
        shape = (self.width,)
        x = F.layer_norm(x, shape, eps=self.eps) if self.centre else F.rms_norm(x, shape, eps=self.eps)
        x = x if self.weight is None else x * self._over_members(self.weight.to(x.dtype), self.width)
        x = x if self.bias is None else x + self._over_members(self.bias.to(x.dtype), self.width)
        return (x if self.gain == 1.0 else x * self.gain).to(y.dtype)

    def _of_one(self, weights: Sequence[Tensor]) -> Norm:
        """The norm of the member whose weights these are: of all of them at once, under `vmap`."""
        one = copy.copy(self)
        batched = next((w for w in weights if _functorch.is_batchedtensor(w)), None)
        parts = {name: part for name, part in self._parameters.items() if part is not None}
        if batched is None:
            index = _running[-1] if _running else 0
            own = {name: part[index] for name, part in parts.items()}
        else:
            level, (start, count) = _functorch.maybe_get_level(batched), _chunk(batched, self.members[0])
            own = {
                name: _functorch._add_batch_dim(part[start : start + count], 0, level)
                for name, part in parts.items()
            }
        one.__dict__["_parameters"] = {**self._parameters, **own}
        return one

    def _sizes(self, weights: Sequence[Tensor]) -> Tensor:
        """The root mean square of the rows of each member; 1 where all are zero."""
        wide = torch.promote_types(weights[0].dtype, torch.float32)
        first = len(self.members)
        norms = [torch.linalg.vector_norm(w.detach().flatten(first), dim=-1, dtype=wide) for w in weights]
        sizes = torch.linalg.vector_norm(torch.stack(norms), dim=0) * (self.rows or self.width) ** -0.5
        return sizes + (sizes == 0)

    def _over_members(self, small: Tensor, width: int = 1) -> Tensor:
        shape = [1] * -min(self.axes)
        for axis, count in zip(self.axes, self.members, strict=True):
            shape[axis] = count
        shape[-1] = width
        return small.reshape(shape)

    def extra_repr(self) -> str:
        return f"{' × '.join(map(str, self.members))} members of {super().extra_repr()}"


def _chunk(batched: Tensor, members: int) -> tuple[int, int]:
    """The first of the members that `vmap` takes together, and how many: all, or a chunk of `chunk_size`."""
    axis, inner = _functorch.maybe_get_bdim(batched), _functorch.get_unwrapped(batched)
    count = inner.shape[axis]
    if count == members:
        return 0, count
    if inner._base is None or _functorch.is_batchedtensor(inner):
        raise ValueError(
            f"vmap takes {count} of {members} members at a time, and which is not known, as their weights "
            "are no views of parameters; leave out chunk_size"
        )
    return (inner.storage_offset() - inner._base.storage_offset()) // inner.stride(axis), count
