"""A recording of a step where there is no CUDA, for tests of what has one made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def run_and_put_back(step: Callable[[], None], changing: Sequence[Tensor]) -> Callable[[], None]:
    """What `capture` does to tensors: a few steps, and `changing` as it was."""
    before = [tensor.detach().clone() for tensor in changing]
    for _ in range(3):
        step()
    with torch.no_grad():
        for tensor, value in zip(changing, before, strict=True):
            tensor.copy_(value)
    return step
