"""A norm for a stack of layers, (members, in, out): each member has a scale and an offset of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nap.norms.norm import Norm


class MemberNorm(Norm):
    """LayerNorm or RMSNorm over the last axis; scale and offset are (members, width).

    eps is relative to each member's own weights, so each is scale-invariant by itself.

    Args:
        members: how many there are, along each axis of members.
        axes: where these axes are in what is normalised, counted from its end; in the same order.

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
        x = y.float() if y.dtype in (torch.bfloat16, torch.float16) else y
        if self.relative:
            x = x / self._over_members(self._sizes(weights)).to(x.dtype)
        shape = (self.width,)
        x = F.layer_norm(x, shape, eps=self.eps) if self.centre else F.rms_norm(x, shape, eps=self.eps)
        x = x if self.weight is None else x * self._over_members(self.weight.to(x.dtype), self.width)
        x = x if self.bias is None else x + self._over_members(self.bias.to(x.dtype), self.width)
        return (x if self.gain == 1.0 else x * self.gain).to(y.dtype)

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
