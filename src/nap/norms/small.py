"""Norms of small weights on a CPU, read by numpy: one of its calls takes a third of the time of PyTorch's.

Every path that needs such a norm takes it from here, since a run may take either path at any update.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

LONG = 1 << 16  # entries
_PIECE = 1 << 13  # a BLAS library sums so few on one thread: the bits do not depend on the number of threads
_READABLE = (torch.float32, torch.float64)


def is_small(weight: Tensor) -> bool:
    """Whether `SmallWeight` takes this tensor, which must be an ordinary one on a CPU."""
    return 0 < weight.numel() <= LONG and weight.dtype in _READABLE and weight.is_contiguous()


class SmallWeight:
    """A view of the entries of a small weight; it holds as long as the weight's `data_ptr` does.

    >>> weight = torch.tensor([[3.0, 4.0]])
    >>> SmallWeight(weight).norm()
    5.0
    """

    __slots__ = ("_pieces", "_round", "flat")

    def __init__(self, weight: Tensor):
        # unlike Tensor.numpy() this leaves the storage resizable, which FSDP needs
        self.flat = np.from_dlpack(weight.detach().view(-1))
        self._pieces = [self.flat[start : start + _PIECE] for start in range(0, weight.numel(), _PIECE)]
        self._round: Any = self.flat.dtype.type

    def norm(self) -> float:
        """‖W‖, rounded to the weight's dtype."""
        squares = 0.0
        for piece in self._pieces:
            squares += float(np.vdot(piece, piece))  # unlike dot it warns of no overflow
        return float(self._round(math.sqrt(squares)))
