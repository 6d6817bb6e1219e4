"""Running a piece of work to its end, over any number of kills: save, restore, and the loop between."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from nap.lab import aliases, files, rows
from nap.lab.files import atomic_write
from nap.lab.rows import FILE_NAME, RowFile
from nap.lab.runner import checkpoint
from nap.lab.runner.checkpoint import PREVIOUS_NAME
from nap.lab.runner.distributed import current_group
from nap.lab.runner.folder import RunFolder
from nap.lab.runner.manifest import Manifest, conditions_of
from nap.lab.runner.signals import StopRequest, stop_requests
from nap.lab.runner.work import NOT_FINITE, NotFinite, OtherInputs, Work, not_restored

FINISHED, STOPPED = 0, 75  # exit codes; 75 is EX_TEMPFAIL: run again to resume


@dataclass(frozen=True)
class Outcome:
    """How a sitting ended."""

    reason: Literal["finished", "stopped"]
    done: int
    total: int
    signal: str | None = None  # what stopped it

    @property
    def exit_code(self) -> int:
        return FINISHED if self.reason == "finished" else STOPPED


@dataclass
class Pace:
    """When the next checkpoint is due: never so often that saving takes more than its share of the time.

    >>> pace = Pace(every_seconds=0.0, share=0.05)
    >>> pace.is_due()
    True
    >>> with pace.measured():
    ...     time.sleep(0.01)
    >>> pace.is_due()  # in 0.2 seconds at the earliest
    False
    """

    every_seconds: float
    share: float
    ended: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0  # that the last one took

    def is_due(self) -> bool:
        """Whether to save now."""
        return time.perf_counter() - self.ended >= max(self.every_seconds, self.seconds / self.share)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Time a save."""
        began = time.perf_counter()
        yield
        self.ended = time.perf_counter()
        self.seconds = self.ended - began


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
    """Do what is left of `work`, from the newest good checkpoint on; a finished run returns at once.

    Rows are on disk before the checkpoint that notes their length and SHA-256, so after a kill they are
    cut back to that length and the same ones written again. SIGTERM, SIGHUP, SIGUSR1 and Ctrl-C save and
    stop after the unit under way; a second Ctrl-C does not wait. A caller that listens for them itself,
    over several runs, passes its `stop`. `NotFinite` passes through, with the last checkpoint left in
    place. At most `save_share` of the time goes into checkpoints. `device` is where the work computes.
    Warnings go to `on_note`, a line each, by default to standard error.
    """
    if folder.is_finished():
        return Outcome("finished", done=work.total, total=work.total)
    with stop_requests() if stop is None else contextlib.nullcontext(stop) as asked:
        conditions = conditions_of(device)
        if (processes := current_group().world_size) > 1:
            conditions["device"] = f"{conditions['device']} × {processes} processes"
        manifest, notes = folder.manifest()
        taken = restore(work, folder, manifest, conditions)
        notes += taken.notes
        for note in notes:
            on_note(note)
        # before rows are cut: at any moment the manifest speaks of rows that are there
        manifest.begin(_about(folder), conditions, notes, at=work.done, rows=taken.rows)
        file = rows.RowFile(folder.path / rows.FILE_NAME)
        file.truncate_to(taken.rows["rows_bytes"])
        spelling = aliases.Spelling(rows.stored(file.path))
        label = {"config": folder.config_hash, "commit": conditions["commit"]}
        pace, saved = Pace(checkpoint_every_seconds, save_share), work.done
        with _reason_noted(manifest):
            on_progress(work)
            while work.done < work.total and asked.signal is None:
                before = work.done
                finished = [{**row, **label} for row in work.step()]
                assert work.done > before, f"step() left `done` at {before}"
                file.append(spelling.of(row) for row in finished)
                if finished:
                    on_rows(finished)
                on_progress(work)
                if pace.is_due():
                    with pace.measured():
                        saved = save(work, folder, file, conditions)
                        manifest.keep_up(noted_rows(file))
            # Here and not in the loop: a signal may come at any moment, after the last look at it too.
            if saved < work.done:
                save(work, folder, file, conditions)
            if work.done < work.total:
                manifest.end(f"stopped by {asked.signal}", noted_rows(file))
                return Outcome("stopped", work.done, work.total, asked.signal)
            manifest.finish(noted_rows(file))
            (folder.path / PREVIOUS_NAME).unlink(missing_ok=True)  # nobody will go back to it
    return Outcome("finished", work.done, work.total)


@contextlib.contextmanager
def _reason_noted(manifest: Manifest) -> Iterator[None]:
    """An error's reason goes into the manifest, and the error on to the caller."""
    try:
        yield
    except BaseException as error:
        kind = NOT_FINITE if isinstance(error, NotFinite) else f"failed: {type(error).__name__}"
        with contextlib.suppress(OSError):  # where the disk is full, the first error says so
            manifest.end(f"{kind}: {error}")
        raise


def _about(folder: RunFolder) -> dict[str, Any]:
    return {
        **folder.settings,
        "config": folder.config_hash,
        "seeds": _seeds(aliases.config(folder.settings["config"])),
    }


def _seeds(config: dict[str, Any]) -> int | None:
    """How many seeds, wherever in the config that stands.

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
    return next((found for found in inner if found is not None), None)


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
