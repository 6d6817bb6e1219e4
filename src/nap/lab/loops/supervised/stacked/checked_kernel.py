"""Kernels of our own where they are right: compared with PyTorch the first time that they meet a shape."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor

Found = TypeVar("Found", Tensor, tuple[Tensor, ...])
# What two ways to compute a result of this kind may differ by, relative to it: products in TF32 by 5·10⁻⁴.
FAR = {torch.bfloat16: 2e-2, torch.float16: 2e-2, torch.float32: 2e-3}
KINDS = tuple(FAR)  # numbers that the kernels are for
_trusted: dict[tuple[Any, ...], bool] = {}  # by operation, shapes and kind of numbers


def best(name: str, plain: Callable[[], Found], quick: Callable[[], Found], given: Sequence[Tensor]) -> Found:
    """What `quick` gives, from kernels for a GPU, where there are any and they are right; else `plain`.

    `given` are the tensors that both work on: name, and kind, place and shapes of them, tell one use from
    another. Kernels that cannot run are not trusted either.
    """
    first = given[0]
    key = (name, first.dtype, first.device, *(tensor.shape for tensor in given))
    recording = first.is_cuda and torch.cuda.is_current_stream_capturing()  # nothing can be looked at then
    if not available(first.device.type) or first.dtype not in KINDS:
        return plain()
    if key in _trusted:
        return quick() if _trusted[key] else plain()
    if recording:
        warnings.warn(f"the {name} of stacked networks is recorded before it was judged: slow", stacklevel=2)
        return plain()
    expected = plain()
    try:
        apart = _apart(quick(), expected)
        if apart is None:
            return expected  # nothing to judge by: the next time will tell
        _trusted[key] = apart <= 1  # not so where it is not a number
        why = f"is {apart:.1g} times as far from PyTorch's as it may be"
    except Exception as error:  # whatever it is, there is another way
        _trusted[key], why = False, f"cannot be made by a kernel ({type(error).__name__}: {error})"
    if not _trusted[key]:
        shapes = " by ".join(str(tuple(tensor.shape)) for tensor in given)
        warnings.warn(
            f"the {name} of stacked networks, {shapes}, {why}; PyTorch's own is used instead: slower, and "
            "right. Please report it",
            stacklevel=2,
        )
    return expected


def _apart(found: Found, expected: Found) -> float | None:
    """The largest difference, in units of what it may be; None where what is expected says nothing."""
    pairs = [(found, expected)] if isinstance(found, Tensor) else list(zip(found, expected, strict=True))
    gaps = torch.stack([(one.float() - other.float()).norm() for one, other in pairs])
    sizes = torch.stack([FAR[other.dtype] * other.float().norm() for _, other in pairs])
    if not (sizes.isfinite().all() and sizes.any()):
        return None
    return (gaps / sizes.clamp(min=1e-30)).max().item()


@cache
def available(device: str) -> bool:
    """Whether there can be kernels: Triton comes with the CUDA builds of torch only."""
    return device == "cuda" and find_spec("triton") is not None
