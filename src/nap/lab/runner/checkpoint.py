"""Checkpoints: written aside, checksummed, read without running code, the previous one kept.

A single flipped bit in a file loads without complaint in `torch.load`, so a checkpoint carries the checksum
of its content: of keys, types, numbers, dtypes, shapes and every tensor byte. Device, strides and aliasing
are no part of the content.

`torch.load(path, weights_only=True)["state"]` reads one without this module.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import shutil
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nap.lab import files
from nap.lab.files import atomic_write, disk_errors_named, readable

FILE_NAME = "checkpoint.pt"
PREVIOUS_NAME = "checkpoint.previous.pt"
REFUSED_NAME = "checkpoint.refused.pt"
FORMAT = "nap checkpoint 1"
State = dict[str, Any]


class Damaged(ValueError):
    """A file that is no checkpoint, or no longer the one that was written."""


def save(path: Path, state: State) -> None:
    """Replace the checkpoint at `path` by `state`; what was there becomes the previous one.

    Where that fails, for want of space or otherwise, the checkpoint in place stays as it was.
    """
    state = plain(state)
    size = sum(tensor.nbytes for tensor in tensors(state)) + 2**16  # and the file's own structure
    with disk_errors_named(path, size):
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise OSError(errno.ENOSPC, f"only {readable(free)} free")
        with atomic_write(path, keep=path.with_name(PREVIOUS_NAME)) as file, _without_crc32():
            torch.save({"format": FORMAT, "sha256": checksum(state), "state": state}, file)


def load(path: Path) -> State:
    """The state that was saved at `path`, exactly; raises `Damaged` with the reason otherwise."""
    if not files.is_file(path):
        raise Damaged("it is no file")
    with path.open("rb") as file:
        beginning = file.read(4)
    if not beginning:
        raise Damaged("it is empty: the disk was full, or somebody emptied it")
    if beginning != b"PK\x03\x04":  # torch.save writes a zip
        raise Damaged(
            "it does not begin as a checkpoint does: it was overwritten, or another program made it"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on odd files; the verdict below is enough
            # Mapped, a tensor whose size was damaged cannot grow its storage: torch refuses it.
            stored = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
        return _checked(stored)
    except Damaged:
        raise
    except pickle.UnpicklingError as error:
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise Damaged("it would run code when it is read, which no checkpoint of ours does") from error
        raise Damaged("it cannot be read: its bytes are no checkpoint's") from error
    except Exception as error:  # a damaged file fails in every way there is
        if "central directory" in str(error):
            raise Damaged("it is cut off: its end is missing") from error
        raise Damaged(f"it cannot be read ({type(error).__name__}: {_first_line(error)})") from error


def load_latest(folder: Path) -> tuple[State | None, list[str]]:
    """The newest good checkpoint of a run and notes on what was refused; None where there is none yet.

    A refused file is renamed, so that the next save does not keep it in place of a good one.
    """
    newest, previous = folder / FILE_NAME, folder / PREVIOUS_NAME
    present = [path for path in (newest, previous) if path.exists()]
    refused: list[str] = []
    for path in present:
        try:
            state = load(path)
        except Damaged as error:
            refused.append(f"{path.name} is refused: {error}")
            continue
        if refused:
            os.replace(newest, folder / REFUSED_NAME)
            refused[0] += f"; going on from {path.name}, and the refused file is kept as {REFUSED_NAME}"
        return state, refused
    if not present:
        return None, []
    raise Damaged(
        f"no good checkpoint in {folder}: {'; '.join(refused)}; "
        f"put a good one back, or delete the folder to start this run over"
    )


def _checked(stored: Any) -> State:
    """The state inside of what a file held."""
    if not (isinstance(stored, dict) and {"format", "sha256", "state"} <= set(stored)):
        raise Damaged("it is no checkpoint of a run")
    if stored["format"] != FORMAT:
        raise Damaged(f"its format is {stored['format']!r}, not {FORMAT!r}")
    state: State = _in_memory(plain(stored["state"]))
    if checksum(state) != stored["sha256"]:
        raise Damaged("its checksum does not match its content")
    return state


def _in_memory(value: Any) -> Any:
    """A copy that does not depend on the file any more."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _in_memory(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_in_memory(item) for item in value)
    return value


@contextmanager
def _without_crc32() -> Iterator[None]:
    """torch's own CRC-32 takes three times as long as writing does, and torch.load never checks it."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["no details"])[0][:200]


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
