"""Laying a piece of work down in its folder, and taking it up again exactly where it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nap.lab import files
from nap.lab.files import atomic_write
from nap.lab.rows import FILE_NAME, RowFile
from nap.lab.runner import checkpoint
from nap.lab.runner.folder import RunFolder
from nap.lab.runner.manifest import Manifest
from nap.lab.runner.work import OtherInputs, Work, not_restored

START_OVER = "put the file back, or start this run over with --force"


@dataclass(frozen=True)
class Taken:
    """What a run goes on from."""

    rows: Mapping[str, Any]  # of the rows that stay, as `noted_rows`
    notes: list[str]  # on what was met on the way


def save(work: Work, folder: RunFolder, rows: RowFile, conditions: Mapping[str, Any]) -> int:
    """Save the work's state with the length of the rows, which are on disk already; the unit it is at."""
    state = {
        "work": work.state_dict(),
        "done": work.done,
        **noted_rows(rows),
        "config": folder.config_hash,
        "conditions": dict(conditions),
    }
    checkpoint.save(folder.path / checkpoint.FILE_NAME, state)
    return work.done


def noted_rows(rows: RowFile) -> dict[str, Any]:
    """Length and SHA-256 of the rows, for a checkpoint and the manifest."""
    return {"rows_bytes": rows.size(), "rows_sha256": rows.sha256}


def restore(work: Work, folder: RunFolder, manifest: Manifest, conditions: Mapping[str, Any]) -> Taken:
    """Bring the work to the newest good checkpoint, and say which rows belong to it.

    Those after them are to be cut off: the work will write the same ones again. Where no manifest says that
    a killed sitting wrote them, they are kept aside first.
    """
    state, notes = checkpoint.load_latest(folder.path)
    path = folder.path / FILE_NAME
    held = files.content(path) if path.exists() else b""
    if state is None:
        notes += _kept(folder, held, manifest.under_way and manifest.rows_saved == 0)
        return Taken(_described(b""), notes)
    if state["config"] != folder.config_hash:
        raise ValueError(
            f"the checkpoint in {folder.path} belongs to configuration {state['config']}, but the folder is "
            f"{folder.config_hash}: it was copied from elsewhere; delete the folder to start this run over"
        )
    notes += _check_rows(folder, held, state)
    _load(work, folder, state)
    belongs = held[: state["rows_bytes"]]
    notes += _kept(folder, held, manifest.under_way or held == belongs)
    if lost := not_restored(work):
        notes.append(f"this resume is not exact, rows differ from those of an unbroken run: {lost}")
    return Taken(_described(belongs), notes + _changes(state["conditions"], conditions))


def _check_rows(folder: RunFolder, held: bytes, state: checkpoint.State) -> list[str]:
    """Refuse rows that are not those that the checkpoint was saved with; notes where that is not known."""
    path, size = folder.path / FILE_NAME, state["rows_bytes"]
    if len(held) < size:
        raise ValueError(
            f"{path} holds {len(held):,} bytes but should hold {size:,}: rows were deleted from it; "
            f"put the file back, or delete the folder to start this run over"
        )
    if "rows_sha256" not in state:
        return [f"the checkpoint is older than checksums of rows: those in {FILE_NAME} are not verified"]
    if state["rows_sha256"] != _described(held[:size])["rows_sha256"]:
        raise ValueError(
            f"{path} is not what this run wrote before its last checkpoint, its SHA-256 differs: the file "
            f"was edited or damaged; {START_OVER}"
        )
    return []


def _kept(folder: RunFolder, held: bytes, is_known: bool) -> list[str]:
    """Put rows aside that nobody vouches for, before they are cut; a note where to."""
    if not held or is_known:
        return []
    aside = folder.path / f"rows.kept-{hashlib.sha256(held).hexdigest()[:8]}.jsonl"
    with atomic_write(aside) as file:
        file.write(held)
    return [
        f"the rows that were in {FILE_NAME} are of no sitting that is known; they are kept as {aside.name}"
    ]


def _described(held: bytes) -> dict[str, Any]:
    return {"rows_bytes": len(held), "rows_sha256": hashlib.sha256(held).hexdigest()}


def _load(work: Work, folder: RunFolder, state: checkpoint.State) -> None:
    stored = checkpoint.checksum(state["work"])
    try:
        work.load_state_dict(state["work"])
    except OtherInputs as error:
        raise ValueError(f"{folder.path}: {error}") from error
    except Exception as error:
        raise _misfit(folder, f"{type(error).__name__}: {error}") from error
    # A work that takes up something else, by a broadcast for example, would go on with wrong numbers.
    if work.done != state["done"] or checkpoint.checksum(checkpoint.plain(work.state_dict())) != stored:
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
