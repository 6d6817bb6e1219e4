"""progress.json in a run's folder: how far its worker is. For those who watch; nothing depends on it."""

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
    """How far a run is."""

    done: int
    total: int
    unit: str

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0


def read(folder: Path) -> Heartbeat | None:
    """What the run's worker told last; None where it told nothing yet, or nothing that makes sense."""
    try:
        stored = json.loads(files.content(folder / FILE_NAME))
        told = Heartbeat(stored["done"], stored["total"], stored["unit"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # the view can do without
        return None
    counts = all(type(count) is int and 0 <= count < 2**63 for count in (told.done, told.total))
    return told if counts and isinstance(told.unit, str) else None


def forget(folder: Path) -> None:
    """Remove what an earlier worker told: until the next one tells something, it has not begun."""
    (folder / FILE_NAME).unlink(missing_ok=True)


class WithHeartbeat(Wrapped):
    """A work that tells how far it is, twice a second at most."""

    def __init__(self, work: Work, folder: Path):
        super().__init__(work)
        self._file, self._next = folder / FILE_NAME, 0.0
        self._tell()

    def step(self) -> list[dict[str, Any]]:
        rows = super().step()
        if time.monotonic() >= self._next or self.done == self.total:
            self._tell()
        return rows

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._tell()

    def _tell(self) -> None:
        self._next = time.monotonic() + EVERY_SECONDS
        aside = self._file.with_name(FILE_NAME + ".aside")
        try:
            with files.opened(aside, "w") as file:
                file.write(json.dumps(asdict(Heartbeat(self.done, self.total, self.unit))))
            os.replace(aside, self._file)
        except files.NotAFile:  # somebody put it there: the view can do without
            pass
        except OSError:  # a full disk: the run's own files will say so
            aside.unlink(missing_ok=True)
