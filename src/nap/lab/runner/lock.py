"""A lock on a run folder, held by one process. The system releases it when that process dies."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from datetime import datetime
from json import dumps
from pathlib import Path

from nap.lab.files import check_no_link, content, parse_json

TIMEOUT_SECONDS = 0.5  # `lock_owner` holds a lock for a moment, which is no reason to give up


class FolderInUse(ValueError):
    """Another process works in this folder."""


class Lock:
    """Held from creation until `release()` or the death of the process.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "lock"
    >>> first = Lock(path)
    >>> Lock(path, timeout_seconds=0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nap.lab.runner.lock.FolderInUse: ... is in use by process ... since ...; wait for it or stop it
    >>> first.release()
    >>> Lock(path).release()
    """

    def __init__(self, path: Path, *, timeout_seconds: float = TIMEOUT_SECONDS):
        check_no_link(path)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            self._acquire(time.monotonic() + timeout_seconds)
            now = datetime.now().astimezone().isoformat(timespec="seconds")
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": now}
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, dumps(owner).encode(), 0)
        except BlockingIOError:
            os.close(self._handle)
            raise FolderInUse(f"{path.parent} is in use by {_owner(path)}; wait for it or stop it") from None
        except OSError as error:
            os.close(self._handle)
            raise _unlockable(path, error) from error

    def release(self) -> None:
        """Release the lock. Its file stays: removing it would race with a process that is opening it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _acquire(self, deadline: float) -> None:
        while True:
            try:
                return fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)


def lock_owner(path: Path) -> str | None:
    """Who holds a lock, as text; None if nobody does, or if the file may not be read. Changes nothing."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EROFS):
            return None
        raise
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"in use by {_owner(path)}"
    except OSError as error:
        raise _unlockable(path, error) from error
    finally:
        os.close(handle)
    return None


def _unlockable(path: Path, error: OSError) -> ValueError:
    reason = f"{path} cannot be locked: {error.strerror}"
    return ValueError(f"{reason}; choose a folder on another disk, a local one, with --out")


def _owner(path: Path) -> str:
    for _ in range(20):  # the owner may have locked it just now and not written its name yet
        try:
            owner = parse_json(content(path))
            return f"process {owner['pid']} on {owner['host']} since {owner['started']}"
        except (ValueError, TypeError, KeyError):
            time.sleep(0.01)
    return "a process that left no name"
