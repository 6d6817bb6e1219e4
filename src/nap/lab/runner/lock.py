"""One process to a folder: a lock that the system gives back when its owner dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from datetime import datetime
from pathlib import Path

from nap.lab.files import check_no_link, content

PATIENCE_SECONDS = 0.5  # who only looks whether a folder is in use, holds its lock for a moment


class FolderInUse(ValueError):
    """Another process works in this folder."""


class Lock:
    """Held from creation until `release()` or the death of the process.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "lock"
    >>> first = Lock(path)
    >>> Lock(path, patience_seconds=0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    nap.lab.runner.lock.FolderInUse: ... is in use by process ... since ...; wait for it or stop it
    >>> first.release()
    >>> Lock(path).release()
    """

    def __init__(self, path: Path, *, patience_seconds: float = PATIENCE_SECONDS):
        check_no_link(path)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            self._take(time.monotonic() + patience_seconds)
            self._sign()
        except BlockingIOError:
            os.close(self._handle)
            raise FolderInUse(f"{path.parent} is in use by {_owner(path)}; wait for it or stop it") from None
        except OSError as error:
            os.close(self._handle)
            raise _unlockable(path, error) from error

    def release(self) -> None:
        """Let others in. The file stays: to remove it would race with a process that is opening it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _take(self, late: float) -> None:
        while True:
            try:
                return fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= late:
                    raise
                time.sleep(0.02)

    def _sign(self) -> None:
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": now}
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps(owner).encode(), 0)


def user_of(path: Path) -> str | None:
    """Who holds a lock, in words; None where nobody does, or where this process may not look.

    Leaves no trace: it shares the lock for a moment, for which a `Lock` that begins has patience.
    """
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
    for _ in range(20):  # the owner may have locked just now and not written its name yet
        try:
            owner = json.loads(content(path))
            return f"process {owner['pid']} on {owner['host']} since {owner['started']}"
        except (ValueError, TypeError, KeyError):
            time.sleep(0.01)
    return "a process that left no name"
