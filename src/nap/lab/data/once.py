"""Folders that are made once: whole, or not at all, whoever else makes the same one at the same time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`; where it is not there yet, `make` fills an empty one, which then takes its place."""
    if folder.is_dir():
        return folder
    aside = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    aside.mkdir(parents=True)
    try:
        make(aside)
        try:
            aside.replace(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same content
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder
