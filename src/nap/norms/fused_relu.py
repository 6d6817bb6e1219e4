"""A norm over the last axis and the ReLU that follows it, computed together under `torch.compile` on a GPU.

What the compiler makes of the two reads rows again and again, above all backward; our own kernels
(`nap.kernels.norm_relu_triton`) read each once. A norm that was told to (`nap.norms.fused_batchnorm`) leaves
its input on its result. The ReLU starts from there, and the norm's own result is never computed, unless
something else uses it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_kernels: Any
try:
    from nap.kernels import norm_relu_triton as _kernels
except ImportError:  # Triton comes with the CUDA builds of torch only
    _kernels = None

ROWS = "nap_rows"  # on the norm's result


class Rows(NamedTuple):
    """The input of a norm over the last axis, and what it does: a LayerNorm (`centre`) or an RMSNorm."""

    y: Tensor
    unit: Tensor | None  # the size of the weights in front, to which eps is relative
    scale: Tensor | None
    offset: Tensor | None
    eps: float
    centre: bool


def leave(result: Tensor, rows: Rows) -> Tensor:
    """The norm's result, with its input on it for the ReLU that may follow."""
    setattr(result, ROWS, rows)
    return result


class FusedReLU(nn.ReLU):
    """A ReLU that starts from the input of the norm before it; without one it is as any other."""

    def forward(self, input: Tensor) -> Tensor:
        rows: Rows | None = getattr(input, ROWS, None)
        if rows is None or not _compiles() or not fits(rows):
            return super().forward(input)
        found: Tensor = torch.ops.nap.norm_relu(*rows)[0]
        return found


def _compiles() -> bool:
    """For use here and now: a program that is exported should need nobody's kernels.

    The flag itself, as `torch.compiler.is_exporting()` is true in all that torch 2.11 compiles.
    """
    return torch.compiler.is_compiling() and not torch.compiler._is_exporting_flag


def fits(rows: Rows) -> bool:
    """Whether our kernels can take these: plain tensors of a GPU, rows not too long, and no `torch.func`."""
    tensors = [rows.y, *(one for one in (rows.unit, rows.scale, rows.offset) if one is not None)]
    return (
        all(_on_a_gpu(one) for one in tensors)
        and rows.y.dtype in _kernels.DTYPES
        and 0 < rows.y.shape[-1] <= _kernels.WIDEST
        and rows.y.numel() > 0
        and not torch._C._are_functorch_transforms_active()
    )


def _on_a_gpu(x: Tensor) -> bool:
    """A plain tensor of one, where Triton is there, too."""
    return x.is_cuda and type(x) in (Tensor, nn.Parameter) and _kernels is not None
