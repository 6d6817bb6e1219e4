"""The shape of common products, without the help of torch's own rules for tensors that have no values.

At their first use those import a thousand modules, which takes longer than planning a language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_CONVOLUTIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}


def product_shape(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """A tensor without values like what a product or look-up returns; None where torch has to be asked.

    >>> x, weight = torch.ones(2, 3, 8, 8), torch.ones(5, 3, 3, 3)
    >>> product_shape("conv2d", (x, weight, None, 2, "valid"), {}).shape
    torch.Size([2, 5, 3, 3])
    """
    if not all(isinstance(a, Tensor) for a in args[:2]) or len(args) < 2:
        return None
    if name == "linear" and args[1].ndim == 2:
        return _empty((*args[0].shape[:-1], len(args[1])), args[0])
    if name == "embedding":
        index, table = sorted(args[:2], key=lambda t: t.is_floating_point())  # torch and F differ in order
        return _empty((*index.shape, *table.shape[1:]), table)
    if name in ("matmul", "mm") and args[1].ndim == 2 and args[0].ndim > 1 and len(args) == 2 and not kwargs:
        return _empty((*args[0].shape[:-1], args[1].shape[1]), args[0])
    if name == "addmm" and len(args) == 3 and isinstance(args[2], Tensor):
        return _empty((args[1].shape[0], args[2].shape[1]), args[1])
    if name in _CONVOLUTIONS:
        return _convolved(_CONVOLUTIONS[name], args[0], args[1], _options(args, kwargs))
    return None


def _options(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    places = {"stride": 3, "padding": 4, "dilation": 5}
    return {
        key: kwargs.get(key, args[place] if len(args) > place else int(key != "padding"))
        for key, place in places.items()
    }


def _convolved(dims: int, x: Tensor, weight: Tensor, options: Mapping[str, Any]) -> Tensor:
    padding = options["padding"]
    stride, dilation = (_each(options[key], dims) for key in ("stride", "dilation"))
    space = x.shape[-dims:]
    if padding != "same":
        widths = _each(0 if padding == "valid" else padding, dims)
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[-dims:], strict=True)]
        space = torch.Size(
            (size + 2 * width - span) // step + 1
            for size, width, span, step in zip(space, widths, reach, stride, strict=True)
        )
    return _empty((*x.shape[: -dims - 1], weight.shape[0], *space), x)


def _each(number: Any, dims: int) -> Sequence[int]:
    numbers = list(number) if isinstance(number, Sequence) else [number]
    return numbers * dims if len(numbers) == 1 else numbers


def _empty(shape: Sequence[int], like: Tensor) -> Tensor:
    return torch.empty(tuple(shape), dtype=like.dtype, device="meta")
