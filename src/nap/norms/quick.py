"""LayerNorm with a relative eps for small networks on a CPU, whose time goes into Python (docs/costs.md).

eps·s² is a number there, and s² = ‖W‖²/rows is kept until W changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import _C, Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module
from torch.utils._device import DeviceContext

from nap.norms.small import SmallWeight, is_small

_SMALLEST, _LARGEST = 1e-20, 1e20  # of s²: beyond them eps·s² or y² may leave float32
_EXACT = (torch.float32, torch.float64)
_is_wrapped = _C._functorch.is_functorch_wrapped_tensor


def is_watched() -> bool:
    """Whether a compiler, a tracer, a mode or a transform of torch.func needs the plain path."""
    return (
        is_compiling()  # first, since a compiler cannot follow the others
        or (_C._len_torch_function_stack() > 0 and not _only_default_devices())
        or _C._len_torch_dispatch_stack() > 0
        or _C._get_tracing_state() is not None
        or _C._functorch.maybe_current_level() is not None  # there even detach() gives no plain tensor
    )


def _only_default_devices() -> bool:
    """Whether all function modes are those of `torch.set_default_device`, which look at nothing."""
    modes = [_C._get_function_stack_at(place) for place in range(_C._len_torch_function_stack())]
    return all(type(mode) is DeviceContext for mode in modes)


def mean_square(weights: Sequence[Tensor], rows: int | None) -> float | None:
    """s² of `row_rms` as a number, where it is there without a wait: eager, on a CPU, of a usual size."""
    if is_watched() or not all(map(_is_plain, weights)):
        return None
    squares = sum(map(_square, weights)) / (rows or weights[0].shape[0]) if weights else 0.0
    return squares if _SMALLEST < squares < _LARGEST else None


def _is_plain(weight: Tensor) -> bool:
    real = type(weight) in (Tensor, nn.Parameter) and not weight.is_complex()
    return real and weight.is_cpu and not _is_wrapped(weight)


def _square(weight: Tensor) -> float:
    if is_small(weight):
        return SmallWeight(weight).norm() ** 2
    detached = weight.detach()
    norm: float = torch.linalg.vector_norm(detached if weight.dtype in _EXACT else detached.float()).item()
    return norm * norm


class KnownSquare:
    """‖W‖² of a small parameter on a CPU, measured again after anything was written into it.

    PyTorch counts writes, except those through `.data`. Those show in the entry that was the largest.
    """

    __slots__ = ("_entry", "_pointer", "_small", "_value", "_version", "rows", "square", "weight")

    def __init__(self, weight: nn.Parameter):
        self.weight, self.rows, self._pointer = weight, weight.shape[0], 0
        self._measure()

    def _measure(self) -> None:
        weight = self.weight
        if weight.data_ptr() != self._pointer:
            self._small, self._pointer = SmallWeight(weight), weight.data_ptr()
            self._entry = int(np.abs(self._small.flat).argmax())
        self.square, self._value = self._small.norm() ** 2, self._small.flat.item(self._entry)
        self._version = weight._version

    def get(self) -> float:
        """‖W‖², measured if W has changed."""
        weight = self.weight
        if (
            weight._version != self._version
            or weight.data_ptr() != self._pointer
            or self._small.flat.item(self._entry) != self._value
        ):
            self._measure()
        return self.square


def _know(weight: Any) -> KnownSquare | None:
    """`KnownSquare` of a small parameter; None for other tensors, which may come and go."""
    stays = type(weight) is nn.Parameter and not weight.is_inference()
    return KnownSquare(weight) if stays and _is_plain(weight) and is_small(weight) else None


def _any_global_hook() -> bool:
    """torch has this as a function, but not yet in 2.6."""
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


def quick_norm(norm: Any, weight: Tensor, y: Tensor) -> Tensor | None:
    """What `norm(y, weight)` gives, in one call of PyTorch's; None where it takes more than that."""
    if not (norm.relative and norm.centre and norm.layout == "features" and norm.gain == 1.0) or is_watched():
        return None
    if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or _any_global_hook():
        return None
    inside, dtype = norm.__dict__, y.dtype
    parts = inside["_parameters"]
    scale, offset = parts.get("weight"), parts.get("bias")
    if scale is None or offset is None or scale.dtype is not dtype or offset.dtype is not dtype:
        return None
    known = inside.get("_known_square")
    if known is None or known.weight is not weight:
        known = inside["_known_square"] = _know(weight)
        if known is None:
            return None
    if dtype not in _EXACT or not weight.is_cpu:
        return None
    squares = known.get() / (norm.rows or known.rows)
    if not _SMALLEST < squares < _LARGEST:
        return None
    return torch.layer_norm(y, (norm.width,), scale, offset, norm.eps * squares, False)
