"""What a run's folder says: the only truth about what is finished, begun, failed or in use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nap.lab import files, rows, stored
from nap.lab.runner import checkpoint
from nap.lab.runner.folder import CONFIG_NAME, LOCK_NAME, has_results, other_settings
from nap.lab.runner.lock import user_of

State = Literal["new", "begun", "failed", "damaged", "in use", "finished"]
Mark = tuple[int, int] | None


@dataclass(frozen=True)
class RunState:
    """The state of a folder, and why or by whom."""

    state: State
    words: str = ""
    seconds: float = 0.0  # of work in it
    edited: bool = False  # its rows are not those that were written

    @property
    def hopeless(self) -> bool:
        """Whether to run again would meet the same again: numbers gone wild, rows that somebody edited."""
        return self.edited or self.words.startswith("not finite")


def read_state(folder: Path) -> RunState:
    """The state of a run's folder; one that cannot be read is a failed one."""
    try:
        return _look(folder)
    except OSError as error:
        return RunState("failed", str(error))
    except files.NotAFile as error:
        return RunState("damaged", str(error))


def _look(folder: Path) -> RunState:
    noted, problem = stored.read_manifest(folder / stored.MANIFEST)
    seconds, finished = float(noted.get("seconds", 0.0)), noted.get("finished")
    file = folder / rows.FILE_NAME
    changed = stored.rows_damage(files.content(file) if file.exists() else b"", noted)
    # asked last: who began in this moment may have cut rows that the manifest noted before
    if finished is None and (owner := user_of(folder / LOCK_NAME)) is not None:
        return RunState("in use", owner, seconds)
    if problem:
        return RunState("damaged", problem)
    if changed:
        return RunState("damaged", f"{folder}/{changed}", seconds, edited=True)
    if finished is not None:
        return RunState("finished", finished, seconds)
    if not noted.get("sittings"):
        return RunState("new")
    reason = noted["sittings"][-1]["exit"] or "killed"
    return RunState("failed" if reason.startswith(("failed", "not finite")) else "begun", reason, seconds)


def settings_apart(folder: Path, asked: dict[str, Any], config: Any) -> list[str]:
    """A line for each setting in which the folder's run differs from what was asked, as `nap run` sees it.

    None for settings that cannot be read: that run is damaged, and says so when it is opened.
    """
    try:
        there = json.loads(files.content(folder / CONFIG_NAME))
    except (FileNotFoundError, ValueError, RecursionError):
        return []
    if not isinstance(there, dict):
        return []
    return other_settings(there, asked, config) if has_results(folder) else []


def mark(folder: Path) -> Mark:
    """Changes whenever a new checkpoint is saved."""
    try:
        stat = (folder / checkpoint.FILE_NAME).stat()
    except OSError:  # none yet, or a folder that cannot be used
        return None
    return stat.st_ino, stat.st_mtime_ns
