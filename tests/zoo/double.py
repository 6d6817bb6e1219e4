"""Runs in float64 with fixed random numbers, whatever the model casts to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


class InDouble(TorchFunctionMode):
    """Casts to a shorter float become casts to float64, or models with such casts round what we measure."""

    SHORT = (torch.float32, torch.float16, torch.bfloat16)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            return args[0].double()
        args = tuple(self._longer(value) for value in args)
        return func(*args, **{key: self._longer(value) for key, value in (kwargs or {}).items()})

    def _longer(self, value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in self.SHORT else value


@contextmanager
def double_run() -> Iterator[None]:
    """Fixed random numbers, float64 everywhere, attention by its definition."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(), sdpa_kernel(SDPBackend.MATH), InDouble():
            torch.manual_seed(0)
            yield
    finally:
        torch.set_default_dtype(default)
