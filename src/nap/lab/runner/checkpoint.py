"""Checkpoints: replaced atomically, checksummed, read without running code; the previous one is kept.

`torch.load` does not notice a flipped bit, so a checkpoint holds a SHA-256 of its keys, types, numbers,
dtypes, shapes and tensor bytes. `torch.load(path, weights_only=True)["state"]` reads one without this module.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator, Mapping
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
    """A file that is not a checkpoint, or not the one that was written."""


def save(path: Path, state: State) -> None:
    """Replace the checkpoint at `path`, which becomes the previous one; if this fails it stays."""
    state = plain(state)
    size = sum(tensor.nbytes for tensor in tensors(state)) + 2**16  # plus the structure of the file
    with disk_errors_named(path, size):
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise OSError(errno.ENOSPC, f"only {readable(free)} free")
        with atomic_write(path, keep=path.with_name(PREVIOUS_NAME)) as file, _without_crc32():
            torch.save({"format": FORMAT, "sha256": checksum(state), "state": state}, file)


def load(path: Path) -> State:
    """The state that was saved at `path`; raises `Damaged` with the reason if it is not as it was saved."""
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
            warnings.simplefilter("ignore")  # of torch, on odd files
            # with mmap, torch refuses a tensor whose damaged size exceeds its storage
            stored = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
        return _checked(stored)
    except Damaged:
        raise
    except pickle.UnpicklingError as error:
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise Damaged("it would run code when it is read, which no checkpoint of ours does") from error
        raise Damaged("it cannot be read: its bytes are no checkpoint's") from error
    except Exception as error:  # a damaged file fails in many ways
        if "central directory" in str(error):
            raise Damaged("it is cut off: its end is missing") from error
        line = (str(error).splitlines() or ["no details"])[0][:200]
        raise Damaged(f"it cannot be read ({type(error).__name__}: {line})") from error


def load_latest(folder: Path) -> tuple[State | None, list[str]]:
    """The newest intact checkpoint of a run, and a note on a damaged one; None if there is none yet.

    A damaged file is renamed, so that the next save does not keep it as the previous checkpoint.
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
    """The state in the content of a file."""
    if not (isinstance(stored, dict) and {"format", "sha256", "state"} <= set(stored)):
        raise Damaged("it is no checkpoint of a run")
    if stored["format"] != FORMAT:
        raise Damaged(f"its format is {stored['format']!r}, not {FORMAT!r}")
    state: State = map_tensors(plain(stored["state"]), Tensor.clone)  # the file is mapped, and may change
    if checksum(state) != stored["sha256"]:
        raise Damaged("its checksum does not match its content")
    return state


@contextmanager
def _without_crc32() -> Iterator[None]:
    """Switch off torch's CRC-32, which takes three times as long as writing and is never checked."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


_LEAVES = (type(None), bool, int, float, str)


def plain(value: Any, name: str = "state") -> Any:
    """`value` with tensors detached, dense and on the CPU; refuses types that weights_only cannot load."""
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


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested dicts, lists and tuples with `change` applied to each tensor."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, change) for item in value)
    return value


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested dicts, lists and tuples, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(item)


def checksum(value: Any) -> str:
    """SHA-256 of nested plain data; the order of keys in dicts does not matter.

    >>> checksum({"a": 1, "b": torch.ones(2)}) == checksum({"b": torch.ones(2), "a": 1})
    True
    >>> checksum(torch.ones(2, 1)) == checksum(torch.ones(1, 2)), checksum([1]) == checksum([1.0])
    (False, False)
    """
    digest = hashlib.sha256()
    for piece in _pieces(value):
        # with its length before each piece, different states cannot give the same bytes
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
