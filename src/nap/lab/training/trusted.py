"""Kernels of our own where they are right: compared with PyTorch the first time that they meet a shape."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

FAR = 2e-2  # what two ways to compute in bfloat16 may differ by, relative to the result; others differ less
KINDS = (torch.bfloat16, torch.float16, torch.float32)  # numbers that the kernels are for
_trusted: dict[tuple[Any, ...], bool] = {}  # by operation, shapes and kind of numbers


def best(
    name: str, plain: Callable[[], Tensor], quick: Callable[[], Tensor], given: Sequence[Tensor]
) -> Tensor:
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
        size, apart = expected.float().norm().item(), (found.float() - expected.float()).norm().item()
        if not 0 < size < float("inf"):
            return expected  # nothing to judge by: the next time will tell
        _trusted[key] = apart <= FAR * size  # not so where it is not a number
        if not _trusted[key]:
            shapes = " by ".join(str(tuple(tensor.shape)) for tensor in given)
            warnings.warn(
                f"the {name} of stacked networks, {shapes}, differs by {apart / size:.1g} from PyTorch's, "
                "which is used instead: slower, and right. Please report it",
                stacklevel=2,
            )
            return expected
    return found


@cache
def available(device: str) -> bool:
    """Whether there can be kernels: Triton comes with the CUDA builds of torch only."""
    return device == "cuda" and find_spec("triton") is not None
