"""A norm over the last axis and the ReLU that follows it, computed together under `torch.compile` on a GPU.

What the compiler makes of the two reads rows again and again, above all backward; our own kernels
(`nap.norms.rows`) read each once. A norm that was told to (`nap.norms.joined`) leaves on its result what it
was given. The ReLU takes that up, and what the norm gave is then never computed, unless someone else uses it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nap.norms.given import ROWS, Rows

_kernels: Any
try:
    from nap.norms import rows as _kernels
except ImportError:  # Triton comes with the CUDA builds of torch only
    _kernels = None


class JoinedReLU(nn.ReLU):
    """A ReLU that takes up what the norm before it was given; without that it is as any other."""

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
