"""The size of the weights in front of a norm, which a relative eps is relative to: s² = Σ‖W‖²/rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def row_rms(weights: Sequence[Tensor], rows: int | None = None) -> Tensor:
    """s with s² = Σ‖W‖²/rows, in float32 or better; 1 where every weight is zero.

    A constant for gradients. Through s they would change by a share of eps, as orthogonal to the
    weight as any LayerNorm's are; and they would cost three more passes over every weight.
    """
    if not weights:
        raise ValueError(
            "a norm with relative eps needs the weights in front of it: norm(y, weight); "
            "or build it with an absolute eps, such as Norm(width, eps=1e-5)"
        )
    wide = torch.promote_types(weights[0].dtype, torch.float32)
    norms = [_norm(w.detach(), wide) for w in weights]
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    rms = norm * (rows or weights[0].shape[0]) ** -0.5
    return rms + (rms == 0)


def _norm(weight: Tensor, dtype: torch.dtype) -> Tensor:
    if torch.compiler.is_compiling():  # rows first: four times as fast, for a stack of weights under vmap
        weight = torch.linalg.vector_norm(weight.flatten(1), dim=1, dtype=dtype)
    return torch.linalg.vector_norm(weight, dtype=dtype)
