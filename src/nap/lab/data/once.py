"""Folders that are made once: whole, or not at all, whoever else makes the same one at the same time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`; where it is not there yet, `make` fills an empty one, which then takes its place.

    One that was killed leaves its half beside it, FOLDER.….part, which nobody needs.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(mkdtemp(prefix=f"{folder.name}.", suffix=".part", dir=folder.parent))
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
