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
FAR = 2e-2  # what two ways to compute in bfloat16 may differ by, relative to the result; others differ less
KINDS = (torch.bfloat16, torch.float16, torch.float32)  # numbers that the kernels are for
_trusted: dict[tuple[Any, ...], bool] = {}  # by operation, shapes and kind of numbers


def best(name: str, plain: Callable[[], Found], quick: Callable[[], Found], given: Sequence[Tensor]) -> Found:
    """What `quick` gives, from kernels for a GPU, where there are any and they are right; else `plain`.

    `given` are the tensors that both work on: kind, place and shapes of them tell one use from another.
    """
    first = given[0]
    key = (name, first.dtype, first.device, *(tensor.shape for tensor in given))
    recording = first.is_cuda and torch.cuda.is_current_stream_capturing()  # nothing can be looked at then
    if not available(first.device.type) or first.dtype not in KINDS or not _trusted.get(key, not recording):
        return plain()
    found = quick()
    if key not in _trusted:
        expected = plain()
        apart = _apart(found, expected)
        if apart is None:
            return expected  # nothing to judge by: the next time will tell
        _trusted[key] = apart <= FAR  # not so where it is not a number
        if not _trusted[key]:
            shapes = " by ".join(str(tuple(tensor.shape)) for tensor in given)
            warnings.warn(
                f"the {name} of stacked networks, {shapes}, differs by {apart:.1g} from PyTorch's, "
                "which is used instead: slower, and right. Please report it",
                stacklevel=2,
            )
            return expected
    return found


def _apart(found: Found, expected: Found) -> float | None:
    """The largest difference, relative to the size of what is expected; None where that says nothing."""
    pairs = [(found, expected)] if isinstance(found, Tensor) else list(zip(found, expected, strict=True))
    apart = [((one.float() - other.float()).norm(), other.float().norm()) for one, other in pairs]
    sizes = torch.stack([size for _, size in apart])
    if not (sizes.isfinite().all() and sizes.any()):
        return None
    return max((gap / size.clamp(min=1e-30)).item() for gap, size in apart)


@cache
def available(device: str) -> bool:
    """Whether there can be kernels: Triton comes with the CUDA builds of torch only."""
    return device == "cuda" and find_spec("triton") is not None
