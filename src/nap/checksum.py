"""A checksum of nested dicts, lists and tensors: of the values, not of the file that holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def checksum(content: Any) -> str:
    """SHA-256 of all keys, numbers, strings and tensors in `content`, in hexadecimal.

    >>> weights = {"weight": torch.ones(2), "steps": [1, 2]}
    >>> checksum(weights) == checksum({"weight": torch.ones(2), "steps": [1, 2]})
    True
    >>> checksum(weights) == checksum({"weight": torch.ones(2), "steps": [1, 3]})
    False
    """
    digest = hashlib.sha256()
    for part in _parts(content):
        digest.update(part)
    return digest.hexdigest()


_PLAIN = (str, bytes, bool, int, float, complex, type(None), torch.dtype, torch.device)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}\0".encode()
        yield _bytes(value)
    elif isinstance(value, Mapping):
        yield f"dict {len(value)}\0".encode()
        for key, entry in value.items():
            yield from _parts(key)
            yield from _parts(entry)
    elif isinstance(value, (list, tuple)):
        yield f"list {len(value)}\0".encode()
        for entry in value:
            yield from _parts(entry)
    else:  # of objects that only their owner knows, the kind
        yield f"{type(value).__name__} {value!r}\0".encode() if isinstance(value, _PLAIN) else b"object\0"


def _bytes(tensor: Tensor) -> Any:
    """The values of a tensor as they lie in memory, row by row."""
    plain = tensor.detach().cpu()
    plain = plain.dequantize() if plain.is_quantized else plain
    plain = plain if plain.layout is torch.strided else plain.to_dense()
    flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return np.from_dlpack(flat.view(torch.uint8))  # Tensor.numpy would make the storage fixed in size
