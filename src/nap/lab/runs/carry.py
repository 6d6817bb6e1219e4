"""Carrying a piece of work through to its end, over any number of kills."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from nap.lab import rows

from . import content, provenance
from .folder import RunFolder
from .manifest import Manifest
from .resume import lay_down, take_up
from .signals import stop_requests
from .work import NotFinite, Work

FINISHED, STOPPED = 0, 75  # exit codes; 75 is EX_TEMPFAIL: run again to resume


@dataclass(frozen=True)
class Outcome:
    """How a sitting ended."""

    reason: Literal["finished", "stopped"]
    done: int
    total: int
    signal: str | None = None  # what stopped it
    notes: tuple[str, ...] = ()  # the warnings on the way, also in the manifest

    @property
    def exit_code(self) -> int:
        return FINISHED if self.reason == "finished" else STOPPED


def carry_out(
    work: Work,
    folder: RunFolder,
    *,
    checkpoint_every_seconds: float = 60.0,
    save_share: float = 0.05,
    device: torch.device | str | None = None,
    on_progress: Callable[[Work], object] | None = None,
    on_rows: Callable[[list[rows.Row]], object] | None = None,
    on_note: Callable[[str], object] | None = None,
) -> Outcome:
    """Do what is left of `work`, from the newest good checkpoint on; a finished run returns at once.

    Rows are on disk before the checkpoint that notes their length, so after a kill they are cut back
    to that length and the same ones written again. SIGTERM, SIGUSR1 and Ctrl-C save and stop after the
    unit under way; a second Ctrl-C does not wait. `NotFinite` passes through, with the last checkpoint
    left in place. At most `save_share` of the time goes into checkpoints. `device` is where the work
    computes, by default where its state's tensors are. Warnings go to `on_note`, a line each, by
    default to standard error.
    """
    if folder.is_finished():
        return Outcome("finished", done=work.total, total=work.total)
    tell_progress, tell_rows = on_progress or _nothing, on_rows or _nothing
    with stop_requests() as stop:
        conditions = provenance.conditions(_device(work) if device is None else torch.device(device))
        file = rows.RowFile(folder.path / rows.FILE_NAME)
        manifest, notes = folder.manifest()
        notes += take_up(work, folder, file, conditions)
        manifest.begin(_about(folder), conditions, notes, at=work.done)
        for note in notes:
            (on_note or _warn)(note)
        label = {"config": folder.config_hash, "commit": conditions["commit"]}
        pace = Pace(checkpoint_every_seconds, save_share)
        with _reason_noted(manifest):
            tell_progress(work)
            while work.done < work.total and stop.signal is None:
                before = work.done
                finished = [{**row, **label} for row in work.advance()]
                assert work.done > before, f"advance() left `done` at {before}"
                file.append(finished)
                if finished:
                    tell_rows(finished)
                tell_progress(work)
                if pace.is_due() or stop.signal is not None or work.done >= work.total:
                    with pace.measured():
                        lay_down(work, folder, file, conditions)
                        manifest.keep_time()
            if work.done < work.total:
                manifest.end(f"stopped by {stop.signal}")
                return Outcome("stopped", work.done, work.total, stop.signal, tuple(notes))
            manifest.finish(rows_bytes=file.size())
    return Outcome("finished", work.done, work.total, notes=tuple(notes))


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


@contextlib.contextmanager
def _reason_noted(manifest: Manifest) -> Iterator[None]:
    """An error's reason goes into the manifest, and the error on to the caller."""
    try:
        yield
    except BaseException as error:
        kind = "not finite" if isinstance(error, NotFinite) else f"failed: {type(error).__name__}"
        with contextlib.suppress(OSError):  # where the disk is full, the first error says so
            manifest.end(f"{kind}: {error}")
        raise


def _about(folder: RunFolder) -> dict[str, Any]:
    seeds = folder.settings["config"].get("seeds")
    return {**folder.settings, "config": folder.config_hash, "seeds": seeds}


def _device(work: Work) -> torch.device:
    devices = (tensor.device for tensor in content.tensors(work.state_dict()))
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _nothing(_: object) -> None:
    pass


def _warn(note: str) -> None:
    print(f"warning: {note}", file=sys.stderr)
