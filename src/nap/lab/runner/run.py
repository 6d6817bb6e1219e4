"""Carrying a piece of work through to its end, over any number of kills."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from nap.lab import aliases, rows
from nap.lab.runner.checkpoint import PREVIOUS_NAME
from nap.lab.runner.distributed import current_group
from nap.lab.runner.folder import RunFolder
from nap.lab.runner.manifest import Manifest, conditions_of
from nap.lab.runner.resume import noted_rows, restore, save
from nap.lab.runner.signals import StopRequest, stop_requests
from nap.lab.runner.work import NOT_FINITE, NotFinite, Work

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
