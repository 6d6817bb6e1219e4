"""Reading and writing files in folders that somebody else may have filled, or that a crash left half done.

A results folder may come from another person. Reading a named pipe in it would block for ever, and writing
through a symbolic link would change a file elsewhere, so both are refused. Files are replaced atomically.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

PARTIAL = ".partial"  # suffix of a file that is being written
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a symbolic link"),
)


class NotAFile(ValueError):
    """There is a folder, pipe, socket, device or link where a regular file is expected."""


def is_file(path: Path) -> bool:
    """Whether a regular file, or a link to one, is there."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # missing, a loop of links, a name that no file can have
        return False


def content(path: Path) -> bytes:
    """All bytes of a file; raises `NotAFile` for a folder, named pipe, device or socket.

    >>> content(Path("/dev/zero"))
    Traceback (most recent call last):
    nap.lab.files.NotAFile: /dev/zero is a device and no file; remove it, or put the file back
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise _not_a_file(path, os.stat(path).st_mode) from error
        raise
    with open(handle, "rb") as file:
        if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
            raise _not_a_file(path, mode)
        return file.read()


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text; raises ValueError if it is malformed, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_no_link(path: Path) -> None:
    """Raise `NotAFile` if the path exists and is not a regular file: writing to it would write elsewhere."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(mode):
        raise _not_a_file(path, mode)


def opened(path: Path, mode: str, **options: Any) -> IO[Any]:
    """`open` for writing that accepts regular files only and follows no symbolic link."""
    check_no_link(path)

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    return open(path, mode, opener=opener, **options)


def _not_a_file(path: Path, mode: int) -> NotAFile:
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a device")
    return NotAFile(f"{path} is {kind} and no file; remove it, or put the file back")


def expanded(path: Path | str) -> Path:
    """The path with ~ and ~user expanded; ValueError if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path}: {error}") from error


@contextmanager
def atomic_write(path: Path, *, keep: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write to, which replaces `path` at the end of the block; after an error nothing remains.

    With `keep`, the previous content of `path` is moved there. Between the two renames only `keep` exists.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "numbers"
    >>> with atomic_write(path) as file:
    ...     written = file.write(b"1 2 3")
    ...     path.exists()
    False
    >>> path.read_bytes()
    b'1 2 3'
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        with opened(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            os.replace(path, keep)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)  # a rename is durable only once its folder is on disk
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as indented JSON."""
    payload = json.dumps(value, indent=2).encode() + b"\n"
    with disk_errors_named(path, len(payload)), atomic_write(path) as file:
        file.write(payload)


@contextmanager
def disk_errors_named(path: Path, size: int) -> Iterator[None]:
    """Re-raise disk errors with the name of the file and the space that it needs."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):  # torch wraps the system's error
            cause = cause.__context__
        if cause is None:
            raise
        raise OSError(
            cause.errno,
            f"{path} was not saved: {cause.strerror or cause}; it needs {readable(size)}, and what was "
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
