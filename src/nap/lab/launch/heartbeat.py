"""progress.json in a run's folder: the progress of its worker, for display only."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nap.lab import files
from nap.lab.runner.work import Work, Wrapped

FILE_NAME = "progress.json"
EVERY_SECONDS = 0.5


@dataclass(frozen=True)
class Heartbeat:
    """The progress of a run."""

    done: int
    total: int
    unit: str

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0


def read(folder: Path) -> Heartbeat | None:
    """The last heartbeat of the run's worker; None if there is none, or an invalid one."""
    try:
        stored = files.parse_json(files.content(folder / FILE_NAME))
        beat = Heartbeat(stored["done"], stored["total"], stored["unit"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    counts = all(type(count) is int and 0 <= count < 2**63 for count in (beat.done, beat.total))
    return beat if counts and isinstance(beat.unit, str) else None


def clear(folder: Path) -> None:
    """Remove the heartbeat of an earlier worker."""
    (folder / FILE_NAME).unlink(missing_ok=True)


class WithHeartbeat(Wrapped):
    """A work that writes its progress, twice a second at most."""

    def __init__(self, work: Work, folder: Path):
        super().__init__(work)
        self._file, self._next = folder / FILE_NAME, 0.0
        self._write()

    def step(self) -> list[dict[str, Any]]:
        rows = super().step()
        if time.monotonic() >= self._next or self.done == self.total:
            self._write()
        return rows

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._write()

    def _write(self) -> None:
        self._next = time.monotonic() + EVERY_SECONDS
        aside = self._file.with_name(FILE_NAME + ".aside")
        try:
            with files.opened(aside, "w") as file:
                file.write(json.dumps(asdict(Heartbeat(self.done, self.total, self.unit))))
            os.replace(aside, self._file)
        except files.NotAFile:  # of somebody else
            pass
        except OSError:  # a full disk, which the run itself reports
            aside.unlink(missing_ok=True)
