"""Files in folders that others may have filled: read only where they are files, replaced whole.

A results folder may come from somebody else, or from a disk that failed. A named pipe would make a reader
wait for ever, and a symbolic link would have a run write into a file elsewhere. Whoever reads a file while it
is replaced, or after a crash, sees the old or the new one.
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

PARTIAL = ".partial"  # ending of a file that is being written
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a symbolic link"),
)


class NotAFile(ValueError):
    """Something else lies where a file belongs; says what, and the way out."""


def is_file(path: Path) -> bool:
    """Whether a file lies there, or a link to one, that can be read without waiting for anybody."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):  # not there, a loop of links, a name that no file can have
        return False


def content(path: Path) -> bytes:
    """All bytes of a file; raises `NotAFile` where it is a folder, a named pipe, a device or a socket.

    >>> content(Path("/dev/zero"))
    Traceback (most recent call last):
    nap.lab.files.NotAFile: /dev/zero is a device and no file; remove it, or put the file back
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise NotAFile(_reason(path, os.stat(path).st_mode)) from error
        raise
    with open(handle, "rb") as file:
        if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
            raise NotAFile(_reason(path, mode))
        return file.read()


def check_no_link(path: Path) -> None:
    """Refuse what is there and is no file: whoever writes to it would write somewhere else."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(mode):
        raise NotAFile(_reason(path, mode))


def opened(path: Path, mode: str, **options: Any) -> IO[Any]:
    """As `open`, for writing: nothing but a file, and not through a link, whenever that was put there."""
    check_no_link(path)

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    return open(path, mode, opener=opener, **options)


def _reason(path: Path, mode: int) -> str:
    kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "a device")
    return f"{path} is {kind} and no file; remove it, or put the file back"


def expanded(path: Path | str) -> Path:
    """The path with ~ and ~user filled in; ValueError where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path}: {error}") from error


@contextmanager
def atomic_write(path: Path, *, keep: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write; at the end it becomes `path`, whole and on disk, or nothing of it remains.

    `keep` is where the present `path` goes. Between the two renames only `keep` exists, and it is good.

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
    _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as indented JSON."""
    payload = json.dumps(value, indent=2).encode() + b"\n"
    with disk_errors_named(path, len(payload)), atomic_write(path) as file:
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
