"""Atomic creation of files and folders of data by any number of processes."""

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

ABANDONED = 24 * 3600  # seconds after which a temporary file is of a killed process


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which replaces `path` at the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f"{glob.escape(path.name)}.*.part"):
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
    """`folder`, after `make` has filled it if it was not there, or if `damage` says what is wrong with it.

    The process that makes it locks FOLDER.lock, which the system releases when the process dies.
    """
    if folder.is_dir() and not damage(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if folder.is_dir():  # made by another process meanwhile, or damaged
            if not (reason := damage(folder)):
                return folder
            print(f"{folder} is damaged ({reason}) and is made anew", file=sys.stderr)
            shutil.rmtree(folder)
        for killed in folder.parent.glob(f"{glob.escape(folder.name)}.*.part"):
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
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time. The lock file stays: removing it would race with a process that opens it."""
    lock = folder.with_name(f"{folder.name}.lock")
    handle = -1
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write(f"another process is making {folder}; waiting for it\n")  # in one call
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if handle >= 0:
            os.close(handle)
        raise DataMissing(
            f"{folder} cannot be made: {lock} cannot be locked ({error.strerror}); choose another place, "
            "for example on a local disk, with the environment variable NAP_DATA"
        ) from error
    try:
        yield
    finally:
        os.close(handle)
