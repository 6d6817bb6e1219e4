"""Our kernels, where they agree with PyTorch: each is compared the first time that it meets a shape."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result", Tensor, tuple[Tensor, ...])
# Relative differences that two correct ways may have; products in TF32 differ by 5·10⁻⁴.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 2e-2, torch.float32: 2e-3}
DTYPES = tuple(TOLERANCE)  # that the kernels are for
_passed: dict[tuple[Any, ...], bool] = {}  # by operation, dtype, device and shapes


def checked(
    name: str, reference: Callable[[], Result], kernel: Callable[[], Result], inputs: Sequence[Tensor]
) -> Result:
    """The result of `kernel` where there is a GPU and it agrees with PyTorch's `reference`; else of that.

    A kernel that cannot run, or that differs, is left out from then on, with a warning.
    """
    first = inputs[0]
    if not available(first.device.type) or first.dtype not in DTYPES:
        return reference()
    key = (name, first.dtype, first.device, *(tensor.shape for tensor in inputs))
    if key in _passed:
        return kernel() if _passed[key] else reference()
    if first.is_cuda and torch.cuda.is_current_stream_capturing():  # no value can be read then
        warnings.warn(f"the {name} of stacked networks is captured before it was checked: slow", stacklevel=2)
        return reference()
    expected = reference()
    try:
        error = _error(kernel(), expected)
        if error is None:
            return expected
        _passed[key] = error <= 1  # false where it is not a number
        reason = f"is {error:.1g} times as far from PyTorch's as it may be"
    except Exception as failure:
        _passed[key] = False
        reason = f"cannot be computed by a kernel ({type(failure).__name__}: {failure})"
    if not _passed[key]:
        shapes = " by ".join(str(tuple(tensor.shape)) for tensor in inputs)
        warnings.warn(
            f"the {name} of stacked networks, {shapes}, {reason}; PyTorch's own is used instead: slower, and "
            "right. Please report it",
            stacklevel=2,
        )
    return expected


def _error(result: Result, expected: Result) -> float | None:
    """The largest difference, in tolerances; None where the expected result is zero or not finite."""
    pairs = [(result, expected)] if isinstance(result, Tensor) else list(zip(result, expected, strict=True))
    gaps = torch.stack([(one.float() - other.float()).norm() for one, other in pairs])
    sizes = torch.stack([TOLERANCE[other.dtype] * other.float().norm() for _, other in pairs])
    if not (sizes.isfinite().all() and sizes.any()):
        return None
    return (gaps / sizes.clamp(min=1e-30)).max().item()


@cache
def available(device: str) -> bool:
    """Whether there can be kernels: Triton comes with the CUDA builds of torch only."""
    return device == "cuda" and find_spec("triton") is not None
