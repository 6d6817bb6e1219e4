"""Files that are replaced whole: a reader, or a crash at any moment, sees the old or the new one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from nap.lab import files

PARTIAL = ".partial"


@contextmanager
def written_aside(path: Path, *, keep: Path | None = None) -> Iterator[IO[bytes]]:
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
        with files.opened(partial, "wb") as file:
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
    payload = json.dumps(value, indent=2).encode() + b"\n"
    with disk_errors_named(path, len(payload)), written_aside(path) as file:
        file.write(payload)


@contextmanager
def disk_errors_named(path: Path, size: int) -> Iterator[None]:
    """An error of the disk, inside, says which file was not written and how much room it needs."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = _disk_error(error)
        if reason is None:
            raise
        raise OSError(
            reason.errno,
            f"{path} was not saved: {reason.strerror or reason}; it needs {readable(size)}, and what was "
            f"saved before is as it was. Make room, then run again to resume",
        ) from error


def readable(size: int) -> str:
    """
    >>> readable(1234), readable(56_789_000), readable(3 * 10**9)
    ('1.2 kB', '56.8 MB', '3.0 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1e3:.1f} kB"


def _disk_error(error: BaseException | None) -> OSError | None:
    """The system's error behind `error`: torch's writer raises one of its own on top of it."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def _sync_folder(folder: Path) -> None:
    """A rename is on disk only once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
