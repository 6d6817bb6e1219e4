"""Laying a piece of work down in its folder, and taking it up again exactly where it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nap.lab.rows import RowFile

from . import checkpoint, content
from .folder import RunFolder
from .work import OtherInputs, Work


def lay_down(work: Work, folder: RunFolder, rows: RowFile, conditions: Mapping[str, Any]) -> int:
    """Save the work's state with the length of the rows, which are on disk already; the unit it is at."""
    state = {
        "work": work.state_dict(),
        "done": work.done,
        "rows_bytes": rows.size(),
        "config": folder.config_hash,
        "conditions": dict(conditions),
    }
    checkpoint.save(folder.path / checkpoint.FILE_NAME, state)
    return work.done


def take_up(work: Work, folder: RunFolder, rows: RowFile, conditions: Mapping[str, Any]) -> list[str]:
    """Bring work and rows to the newest good checkpoint; notes on what was met on the way.

    Rows written after that checkpoint are cut off: the work will write the same ones again.
    """
    state, notes = checkpoint.load_latest(folder.path)
    if state is None:
        rows.truncate_to(0)
        return notes
    if state["config"] != folder.config_hash:
        raise ValueError(
            f"the checkpoint in {folder.path} belongs to configuration {state['config']}, but the folder is "
            f"{folder.config_hash}: it was copied from elsewhere; delete the folder to start this run over"
        )
    _load(work, folder, state)
    rows.truncate_to(state["rows_bytes"])
    return notes + _changes(state["conditions"], conditions)


def _load(work: Work, folder: RunFolder, state: checkpoint.State) -> None:
    stored = content.checksum(state["work"])
    try:
        work.load_state_dict(state["work"])
    except OtherInputs as error:
        raise ValueError(f"{folder.path}: {error}") from error
    except Exception as error:
        raise _misfit(folder, f"{type(error).__name__}: {error}") from error
    # A work that takes up something else, by a broadcast for example, would go on with wrong numbers.
    if work.done != state["done"] or content.checksum(content.plain(work.state_dict())) != stored:
        raise _misfit(folder, "what it took up is not what was stored")


def _misfit(folder: RunFolder, reason: str) -> ValueError:
    return ValueError(
        f"the checkpoint in {folder.path} does not fit this work ({reason}): the code has changed since; "
        f"resume with the commit that its manifest.json names, or delete the folder to start this run over"
    )


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changed = [f"{key} {then.get(key)} → {value}" for key, value in now.items() if then.get(key) != value]
    if not changed:
        return []
    return [
        f"resumed under other conditions ({', '.join(changed)}): from here on, rows may differ in their "
        f"last bits from those of an unbroken run"
    ]
