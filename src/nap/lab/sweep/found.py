"""What a run's folder says: the only truth about what is finished, begun, failed or in use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nap.lab import rows
from nap.lab.runs import checkpoint, manifest
from nap.lab.runs.folder import CONFIG_NAME, LOCK_NAME, has_results, other_settings
from nap.lab.runs.lock import user_of

State = Literal["new", "begun", "failed", "in use", "finished"]
EDITED = "was edited after the run was finished"
Mark = tuple[int, int] | None


@dataclass(frozen=True)
class Found:
    """The state of a folder, and why or by whom."""

    state: State
    words: str = ""
    seconds: float = 0.0  # of work in it

    @property
    def hopeless(self) -> bool:
        """Whether to run again would meet the same again: numbers gone wild, rows that somebody edited."""
        return self.words.startswith("not finite") or self.words.endswith(EDITED)


def look(folder: Path) -> Found:
    """The state of a run's folder; one that cannot be read is a failed one."""
    try:
        return _look(folder)
    except OSError as error:
        return Found("failed", str(error))


def _look(folder: Path) -> Found:
    noted, _ = manifest.Manifest.read(folder / manifest.FILE_NAME)
    seconds = float(noted.content.get("seconds", 0.0))
    if noted.finished is not None:
        file = folder / rows.FILE_NAME
        if file.exists() and file.stat().st_size == noted.content["rows_bytes"]:
            return Found("finished", noted.finished, seconds)
        return Found("failed", f"{file} {EDITED}", seconds)
    if (owner := user_of(folder / LOCK_NAME)) is not None:
        return Found("in use", owner, seconds)
    if not noted.content.get("sittings"):
        return Found("new")
    reason = noted.content["sittings"][-1]["exit"] or "killed"
    return Found("failed" if reason.startswith(("failed", "not finite")) else "begun", reason, seconds)


def settings_apart(folder: Path, asked: dict[str, Any], config: Any) -> list[str]:
    """A line for each setting in which the folder's run differs from what was asked, as `nap run` sees it."""
    try:
        there = json.loads((folder / CONFIG_NAME).read_bytes())
    except FileNotFoundError:
        return []
    except ValueError as error:
        return [f"{CONFIG_NAME} is damaged: {error}"]
    return other_settings(there, asked, config) if has_results(folder) else []


def mark(folder: Path) -> Mark:
    """Changes whenever a new checkpoint is saved."""
    try:
        stat = (folder / checkpoint.FILE_NAME).stat()
    except OSError:  # none yet, or a folder that cannot be used
        return None
    return stat.st_ino, stat.st_mtime_ns
