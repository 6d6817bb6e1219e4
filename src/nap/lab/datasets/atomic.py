"""Files and folders that are there whole or not at all, whoever is killed while making them."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from nap.lab.datasets.store import DataMissing

ABANDONED = 24 * 3600  # seconds after which nobody writes to a file any more


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A path to write to. What is there at the end replaces `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f"{glob.escape(path.name)}.*.part"):  # of a process that was killed
        if time.time() - old.stat().st_mtime > ABANDONED:
            old.unlink(missing_ok=True)
    aside = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        yield aside
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def atomic_dir(
    folder: Path, make: Callable[[Path], None], *, damage: Callable[[Path], str] = lambda folder: ""
) -> Path:
    """`folder`; where it is not there yet, `make` fills an empty one, which then takes its place.

    `damage` says in words what is wrong with a folder that is there, "" for nothing; such a one is made anew.
    Whoever makes it holds FOLDER.lock, which the system gives back when its owner dies, however it dies.
    """
    if folder.is_dir() and not damage(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        if folder.is_dir():  # another process made it meanwhile, or it is damaged
            if not (reason := damage(folder)):
                return folder
            print(f"{folder} is damaged ({reason}) and is made anew", file=sys.stderr)
            shutil.rmtree(folder)
        for killed in folder.parent.glob(f"{glob.escape(folder.name)}.*.part"):  # nobody else makes one now
            shutil.rmtree(killed, ignore_errors=True)
        aside = folder.with_name(f"{folder.name}.{uuid4().hex}.part")
        try:
            aside.mkdir()
            make(aside)
            aside.replace(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time. The lock's file stays: to remove it would race with one that is opening it."""
    lock = folder.with_name(f"{folder.name}.lock")
    handle = -1
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        _lock(handle, folder)
    except OSError as error:
        if handle >= 0:
            os.close(handle)
        raise DataMissing(
            f"{folder} cannot be made: {lock} cannot be locked ({error.strerror}); choose another place, "
            "on a local disk perhaps, with the environment variable NAP_DATA"
        ) from error
    try:
        yield
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(f"another process is making {folder}; waiting for it\n")  # at once: several say so
        fcntl.flock(handle, fcntl.LOCK_EX)
