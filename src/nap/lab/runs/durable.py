"""Files that are replaced whole: a reader, or a crash at any moment, sees the old or the new one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

PARTIAL = ".partial"


@contextmanager
def written_aside(path: Path, *, keep: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write; at the end it becomes `path`, whole and on disk, or nothing of it remains.

    `keep` is where the present `path` goes. Between the two renames only `keep` exists, and it is good.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers"
    >>> with written_aside(path) as file:
    ...     written = file.write(b"1 2 3")
    ...     path.exists()
    False
    >>> path.read_bytes()
    b'1 2 3'
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as indented JSON."""
    with written_aside(path) as file:
        file.write(json.dumps(value, indent=2).encode() + b"\n")


def _sync_folder(folder: Path) -> None:
    """A rename is on disk only once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
