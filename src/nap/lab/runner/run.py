"""The loop that runs a work to its end, over any number of kills: restore, step, write rows, save."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from nap.lab import aliases, files, rows
from nap.lab.rows import FILE_NAME, RowFile
from nap.lab.runner import checkpoint
from nap.lab.runner.checkpoint import PREVIOUS_NAME
from nap.lab.runner.distributed import current_group
from nap.lab.runner.folder import RunFolder
from nap.lab.runner.manifest import Manifest, conditions_of
from nap.lab.runner.signals import StopRequest, stop_requests
from nap.lab.runner.work import NOT_FINITE, NotFinite, OtherInputs, Work, not_restored

FINISHED, STOPPED = 0, 75  # exit codes; 75 is EX_TEMPFAIL: run again to resume
START_OVER = "put the file back, or start this run over with --force"


@dataclass(frozen=True)
class Outcome:
    """How a session ended."""

    reason: Literal["finished", "stopped"]
    done: int
    total: int
    signal: str | None = None  # what stopped it

    @property
    def exit_code(self) -> int:
        return FINISHED if self.reason == "finished" else STOPPED


@dataclass
class CheckpointTimer:
    """When the next checkpoint is due; saving takes at most `share` of the time.

    >>> timer = CheckpointTimer(every_seconds=0.0, share=0.05)
    >>> timer.is_due()
    True
    >>> with timer.measured():
    ...     time.sleep(0.01)
    >>> timer.is_due()  # in 0.2 seconds at the earliest
    False
    """

    every_seconds: float
    share: float
    saved_at: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0  # that the last save took

    def is_due(self) -> bool:
        return time.perf_counter() - self.saved_at >= max(self.every_seconds, self.seconds / self.share)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.saved_at = time.perf_counter()
        self.seconds = self.saved_at - began


def _nothing(_: object) -> None:
    pass


def _warn(note: str) -> None:
    print(f"warning: {note}", file=sys.stderr)


def run_work(
    work: Work,
    folder: RunFolder,
    *,
    device: torch.device,
    checkpoint_every_seconds: float = 60.0,
    save_share: float = 0.05,
    stop: StopRequest | None = None,
    on_progress: Callable[[Work], object] = _nothing,
    on_rows: Callable[[list[rows.Row]], object] = _nothing,
    on_note: Callable[[str], object] = _warn,
) -> Outcome:
    """Run `work` to its end from the newest intact checkpoint; a finished run returns at once.

    Rows are on disk before the checkpoint with their length and SHA-256. After a kill they are cut back to
    that length and written again. SIGTERM, SIGHUP, SIGUSR1 and Ctrl-C save and stop after the current unit;
    a second Ctrl-C does not wait. `NotFinite` passes through and leaves the last checkpoint in place.

    Args:
        device: where the work computes.
        save_share: at most this share of the time goes into checkpoints.
        stop: of a caller that handles signals itself, over several runs.
        on_note: called with each warning; by default they go to standard error.
    """
    if folder.is_finished():
        return Outcome("finished", done=work.total, total=work.total)
    with stop_requests() if stop is None else contextlib.nullcontext(stop) as stop:
        conditions = conditions_of(device)
        if (processes := current_group().world_size) > 1:
            conditions["device"] = f"{conditions['device']} × {processes} processes"
        manifest, notes = folder.manifest()
        digest, more_notes = restore(work, folder, manifest, conditions)
        notes += more_notes
        for note in notes:
            on_note(note)
        config = aliases.config(folder.settings["config"])
        about = {**folder.settings, "config": folder.config_hash, "seeds": _seeds(config)}
        # before rows are cut, so that the manifest never speaks of rows that are not there
        manifest.begin(about, conditions, notes, at=work.done, rows=digest)
        file = RowFile(folder.path / FILE_NAME)
        file.truncate_to(digest["rows_bytes"])
        spelling = aliases.Spelling(rows.stored(file.path))
        label = {"config": folder.config_hash, "commit": conditions["commit"]}
        timer, saved = CheckpointTimer(checkpoint_every_seconds, save_share), work.done
        with _errors_recorded(manifest):
            on_progress(work)
            while work.done < work.total and stop.signal is None:
                before = work.done
                new = [{**row, **label} for row in work.step()]
                assert work.done > before, f"step() left `done` at {before}"
                file.append(spelling.of(row) for row in new)
                if new:
                    on_rows(new)
                on_progress(work)
                if timer.is_due():
                    with timer.measured():
                        saved = save(work, folder, file, conditions)
                        manifest.update(rows_digest(file))
            # after the loop, since a signal may come after its last check
            if saved < work.done:
                save(work, folder, file, conditions)
            if work.done < work.total:
                manifest.end(f"stopped by {stop.signal}", rows_digest(file))
                return Outcome("stopped", work.done, work.total, stop.signal)
            manifest.finish(rows_digest(file))
            (folder.path / PREVIOUS_NAME).unlink(missing_ok=True)  # no longer needed
    return Outcome("finished", work.done, work.total)


@contextlib.contextmanager
def _errors_recorded(manifest: Manifest) -> Iterator[None]:
    """Write the reason of an error into the manifest, and raise it again."""
    try:
        yield
    except BaseException as error:
        kind = NOT_FINITE if isinstance(error, NotFinite) else f"failed: {type(error).__name__}"
        with contextlib.suppress(OSError):  # on a full disk the first error says so
            manifest.end(f"{kind}: {error}")
        raise


def _seeds(config: dict[str, Any]) -> int | None:
    """The number of seeds, at any depth of the config.

    >>> _seeds({"arm": {"name": "NaP"}, "settings": {"seeds": 5}})
    5
    >>> _seeds({"seed": 2, "settings": {"seeds": 5}})  # this run is one of them
    1
    """
    if "seed" in config:
        return int(config.get("seeds_per_run", 1))
    if "seeds" in config:
        return int(config["seeds"])
    inner = (_seeds(value) for value in config.values() if isinstance(value, dict))
    return next((count for count in inner if count is not None), None)


def save(work: Work, folder: RunFolder, file: RowFile, conditions: Mapping[str, Any]) -> int:
    """Save a checkpoint after the rows, which are on disk already; returns the unit that it is at."""
    state = {
        "work": work.state_dict(),
        "done": work.done,
        **rows_digest(file),
        "config": folder.config_hash,
        "conditions": dict(conditions),
    }
    checkpoint.save(folder.path / checkpoint.FILE_NAME, state)
    return work.done


def rows_digest(file: RowFile) -> dict[str, Any]:
    """Length and SHA-256 of the rows, for a checkpoint and the manifest."""
    return {"rows_bytes": file.size(), "rows_sha256": file.sha256}


def restore(
    work: Work, folder: RunFolder, manifest: Manifest, conditions: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Load the newest intact checkpoint; returns the digest of the rows before it, and notes.

    Later rows are to be cut off, since the work writes them again. If no manifest says that an interrupted
    session wrote them, they are copied to another file first.
    """
    state, notes = checkpoint.load_latest(folder.path)
    path = folder.path / FILE_NAME
    content = files.content(path) if path.exists() else b""
    if state is None:
        notes += _set_aside(folder, content, manifest.under_way and manifest.rows_saved == 0)
        return _digest(b""), notes
    if state["config"] != folder.config_hash:
        raise ValueError(
            f"the checkpoint in {folder.path} belongs to configuration {state['config']}, but the folder is "
            f"{folder.config_hash}: it was copied from elsewhere; delete the folder to start this run over"
        )
    before = content[: state["rows_bytes"]]
    notes += _check_rows(path, before, state)
    _load(work, folder, state)
    notes += _set_aside(folder, content, manifest.under_way or content == before)
    if lost := not_restored(work):
        notes.append(f"this resume is not exact, rows differ from those of an unbroken run: {lost}")
    then = state["conditions"]
    changed = [f"{key} {then.get(key)} → {now}" for key, now in conditions.items() if then.get(key) != now]
    if changed:
        notes.append(
            f"resumed under other conditions ({', '.join(changed)}): from here on, rows may differ in their "
            f"last bits from those of an unbroken run"
        )
    return _digest(before), notes


def _check_rows(path: Path, before: bytes, state: checkpoint.State) -> list[str]:
    """Refuse rows that are not those at the checkpoint; a note if an old checkpoint has no checksum."""
    if len(before) < state["rows_bytes"]:
        raise ValueError(
            f"{path} holds {len(before):,} bytes but should hold {state['rows_bytes']:,}: rows were deleted "
            f"from it; put the file back, or delete the folder to start this run over"
        )
    if "rows_sha256" not in state:
        return [f"the checkpoint is older than checksums of rows: those in {FILE_NAME} are not verified"]
    if state["rows_sha256"] != _digest(before)["rows_sha256"]:
        raise ValueError(
            f"{path} is not what this run wrote before its last checkpoint, its SHA-256 differs: the file "
            f"was edited or damaged; {START_OVER}"
        )
    return []


def _set_aside(folder: RunFolder, content: bytes, is_ours: bool) -> list[str]:
    """Copy rows of unknown origin to another file before they are cut; a note that names it."""
    if not content or is_ours:
        return []
    copy = folder.path / f"rows.kept-{hashlib.sha256(content).hexdigest()[:8]}.jsonl"
    with files.atomic_write(copy) as file:
        file.write(content)
    return [f"no manifest says which session wrote the rows in {FILE_NAME}; they are kept as {copy.name}"]


def _digest(content: bytes) -> dict[str, Any]:
    return {"rows_bytes": len(content), "rows_sha256": hashlib.sha256(content).hexdigest()}


def _load(work: Work, folder: RunFolder, state: checkpoint.State) -> None:
    expected = checkpoint.checksum(state["work"])
    try:
        work.load_state_dict(state["work"])
    except OtherInputs as error:
        raise ValueError(f"{folder.path}: {error}") from error
    except Exception as error:
        raise _misfit(folder, f"{type(error).__name__}: {error}") from error
    # load_state_dict may broadcast or cast without an error
    if work.done != state["done"] or checkpoint.checksum(checkpoint.plain(work.state_dict())) != expected:
        raise _misfit(folder, "the state after loading is not the stored one")


def _misfit(folder: RunFolder, reason: str) -> ValueError:
    return ValueError(
        f"the checkpoint in {folder.path} does not fit this work ({reason}): the code has changed since; "
        f"resume with the commit that its manifest.json names, or delete the folder to start this run over"
    )
