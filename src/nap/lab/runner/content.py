"""What a state holds, apart from how it is stored: plain data, and a checksum over it.

A single flipped bit in a file loads without complaint in `torch.load`, so a checkpoint carries the
checksum of its content. The walk covers keys, types, numbers, dtypes, shapes and every tensor byte;
device, strides and aliasing are no part of the content.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_LEAVES = (type(None), bool, int, float, str)


def plain(value: Any, name: str = "state") -> Any:
    """`value` with detached tensors on the CPU inside dicts, lists and tuples; a copy only where needed.

    Anything else is refused here, at the save, since `torch.load(weights_only=True)` would refuse it.
    """
    if type(value) in (Tensor, nn.Parameter):
        return _plain_tensor(value, name)
    if isinstance(value, Mapping):
        for key in value:
            if type(key) not in _LEAVES:
                raise ValueError(f"{name} has the key {key!r}; keys are texts or numbers")
        return {key: plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(item, f"{name}[{index}]") for index, item in enumerate(value))
    if type(value) in _LEAVES:
        return value
    raise ValueError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold; "
        f"convert it to a tensor, number, text, list, tuple or dict"
    )


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor inside, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(item)


def checksum(value: Any) -> str:
    """SHA-256 over plain data, whatever the order of its dicts' keys.

    >>> checksum({"a": 1, "b": torch.ones(2)}) == checksum({"b": torch.ones(2), "a": 1})
    True
    >>> checksum(torch.ones(2, 1)) == checksum(torch.ones(1, 2)), checksum([1]) == checksum([1.0])
    (False, False)
    """
    digest = hashlib.sha256()
    for piece in _pieces(value):
        # Each piece is preceded by its length: no two different states give one sequence of bytes.
        digest.update(struct.pack("<Q", len(piece)))
        digest.update(piece)
    return digest.hexdigest()


def _pieces(value: Any) -> Iterator[Any]:
    yield type(value).__name__.encode()
    if isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield value.reshape(-1).view(torch.uint8).numpy()
    elif isinstance(value, dict):
        yield str(len(value)).encode()
        for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
            yield from _pieces(key)
            yield from _pieces(value[key])
    elif isinstance(value, list | tuple):
        yield str(len(value)).encode()
        for item in value:
            yield from _pieces(item)
    else:
        yield struct.pack("<d", value) if isinstance(value, float) else str(value).encode()


def _plain_tensor(value: Tensor, name: str) -> Tensor:
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        raise ValueError(f"{name} is a {value.layout} tensor on {value.device}; only dense ones can be saved")
    tensor = value.detach().resolve_conj().resolve_neg().cpu()
    # torch.save writes a view's whole storage, which may belong to a far larger tensor
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
