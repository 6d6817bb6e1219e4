"""Files in folders that others may have filled: read only where they are files, written through no link.

A results folder may come from somebody else, or from a disk that failed. A named pipe would make a reader
wait for ever, and a symbolic link would have a run write into a file elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO, Any

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
