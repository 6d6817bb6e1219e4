"""Forwards in float64 throughout, whatever a model makes in float32 on the way or casts to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_LONGER = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    **dict.fromkeys((torch.complex64, torch.complex32), torch.complex128),
}
_SHORTENING = (Tensor.float, Tensor.half, Tensor.bfloat16)
_INTO_FIRST = ("copy_", "__setitem__")  # and all that end in an underscore: what is written into stays


class _InDouble(TorchFunctionMode):
    """Casts to a shorter type become casts to the longer one; shorter tensors are lengthened where used."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _SHORTENING and not args[0].is_complex():
            return args[0].double()
        kwargs = dict(kwargs or {})
        out = {key: kwargs.pop(key) for key in ("out",) if key in kwargs}
        name = getattr(func, "__name__", "")
        written = name in _INTO_FIRST or (name.endswith("_") and not name.endswith("__"))
        kept = args[:1] if written or name in ("__get__", "__set__") else ()
        args = (*kept, *tree_map(longer, tuple(args[len(kept) :])))
        if name.strip("_") == "grouped_mm":  # torch has it for shorter types only
            return _grouped(*args, **tree_map(longer, kwargs))
        return func(*args, **tree_map(longer, kwargs), **out)


def _grouped(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """The products of groups, one by one: `offs` says where each one ends on the axis that lists them."""
    if offs is None:
        return a @ b if bias is None else a @ b + bias
    ends = [0, *offs.tolist()]
    spans = [slice(start, end) for start, end in pairwise(ends)]
    if a.ndim == b.ndim == 2:
        return torch.stack([a[:, span] @ b[span] for span in spans])
    if a.ndim == 2:
        out = a.new_zeros(len(a), b.shape[-1])
        for i, span in enumerate(spans):
            out[span] = a[span] @ b[i] if bias is None else a[span] @ b[i] + bias[i]
        return out
    out = a.new_zeros(a.shape[1], b.shape[1])
    for i, span in enumerate(spans):
        out[:, span] = a[i] @ b[:, span]
    return out


def longer(x: Any) -> Any:
    """A tensor or dtype in float64 or complex128; anything else as it is."""
    if isinstance(x, torch.dtype):
        return _LONGER.get(x, x)
    return x.to(_LONGER[x.dtype]) if isinstance(x, Tensor) and x.dtype in _LONGER else x


@contextmanager
def in_double() -> Iterator[None]:
    """New tensors are float64 inside, and so is what is computed from shorter ones.

    >>> with in_double():
    ...     (torch.ones(2).float() @ torch.arange(2, dtype=torch.float32)).dtype
    torch.float64
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _InDouble():
            yield
    finally:
        torch.set_default_dtype(default)
