"""Checkpoints: written aside, checksummed, read without running code, the previous one kept.

`torch.load(path, weights_only=True)["state"]` reads one without this module.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nap.lab import files
from nap.lab.files import atomic_write, disk_errors_named, readable
from nap.lab.runner import content

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
    state = content.plain(state)
    size = sum(tensor.nbytes for tensor in content.tensors(state)) + 2**16  # and the file's own structure
    with disk_errors_named(path, size):
        free = shutil.disk_usage(path.parent).free
        if free < size:
            raise OSError(errno.ENOSPC, f"only {readable(free)} free")
        with atomic_write(path, keep=path.with_name(PREVIOUS_NAME)) as file, _without_crc32():
            torch.save({"format": FORMAT, "sha256": content.checksum(state), "state": state}, file)


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
    state: State = _in_memory(content.plain(stored["state"]))
    if content.checksum(state) != stored["sha256"]:
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
