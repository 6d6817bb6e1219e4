"""The state of a run, read from its folder: the only source for what is finished, failed or in use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nap.lab import files, rows, stored
from nap.lab.runner import checkpoint
from nap.lab.runner.folder import CONFIG_NAME, LOCK_NAME, has_results, other_settings
from nap.lab.runner.lock import lock_owner

State = Literal["new", "begun", "failed", "damaged", "in use", "finished"]
Stamp = tuple[int, int] | None


@dataclass(frozen=True)
class RunState:
    """The state of a run folder; `detail` says why it failed, or who uses it."""

    state: State
    detail: str = ""
    seconds: float = 0.0  # of work so far
    rows_changed: bool = False  # the rows are not those that the run wrote

    @property
    def is_permanent(self) -> bool:
        """Whether another attempt would fail in the same way."""
        return self.rows_changed or self.detail.startswith("not finite")


def read_state(folder: Path) -> RunState:
    """The state of a run's folder; "failed" if it cannot be read."""
    try:
        return _read_state(folder)
    except OSError as error:
        return RunState("failed", str(error))
    except files.NotAFile as error:
        return RunState("damaged", str(error))


def _read_state(folder: Path) -> RunState:
    manifest, problem = stored.read_manifest(folder / stored.MANIFEST)
    seconds, finished = float(manifest.get("seconds", 0.0)), manifest.get("finished")
    file = folder / rows.FILE_NAME
    damage = stored.rows_damage(files.content(file) if file.exists() else b"", manifest)
    # after the rows: a process that begins now may cut rows that this manifest counts
    if finished is None and (owner := lock_owner(folder / LOCK_NAME)) is not None:
        return RunState("in use", owner, seconds)
    if problem:
        return RunState("damaged", problem)
    if damage:
        return RunState("damaged", f"{folder}/{damage}", seconds, rows_changed=True)
    if finished is not None:
        return RunState("finished", finished, seconds)
    if not manifest.get("sessions"):
        return RunState("new")
    reason = manifest["sessions"][-1]["exit"] or "killed"
    return RunState("failed" if reason.startswith(("failed", "not finite")) else "begun", reason, seconds)


def setting_differences(folder: Path, requested: dict[str, Any], config: Any) -> list[str]:
    """One line for each setting in which the folder's run differs from the request.

    None for a config.json that cannot be read: opening the folder reports it as damaged.
    """
    try:
        there = files.parse_json(files.content(folder / CONFIG_NAME))
    except (FileNotFoundError, ValueError):
        return []
    known = isinstance(there, dict) and has_results(folder)
    return other_settings(there, requested, config) if known else []


def checkpoint_stamp(folder: Path) -> Stamp:
    """Changes whenever a new checkpoint is saved."""
    try:
        stat = (folder / checkpoint.FILE_NAME).stat()
    except OSError:  # none yet, or an unreadable folder
        return None
    return stat.st_ino, stat.st_mtime_ns
