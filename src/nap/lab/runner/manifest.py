"""manifest.json: where the rows of a folder come from, and how each sitting at them ended."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from nap.lab import stored
from nap.lab.files import write_json
from nap.lab.runner import provenance

FILE_NAME = stored.MANIFEST


class Manifest:
    """What happened in a run's folder; every change is on disk when the call returns.

    `exit` is null while a sitting is under way: one that was killed leaves it so.
    """

    def __init__(self, path: Path, content: dict[str, Any]):
        self.path, self.content = path, content
        self._began_at = time.perf_counter()
        self._seconds_before = content.get("seconds", 0.0)

    @classmethod
    def read(cls, path: Path) -> tuple[Manifest, list[str]]:
        """The manifest at `path`, or an empty one, with a note where it was there but unreadable."""
        content, damage = stored.read_manifest(path)
        return cls(path, content), [f"{damage}: earlier sittings are forgotten"] if damage else []

    @property
    def finished(self) -> str | None:
        """When the run was finished, None until it is."""
        return self.content.get("finished")

    @property
    def under_way(self) -> bool:
        """Whether there were sittings, and none of them finished the run."""
        return bool(self.content.get("sittings")) and self.finished is None

    @property
    def rows_saved(self) -> int | None:
        """Bytes of rows that belong to its last checkpoint; None where it is older than this note."""
        return self.content.get("rows_bytes")

    def begin(
        self,
        about: Mapping[str, Any],
        conditions: Mapping[str, Any],
        notes: list[str],
        *,
        at: int,
        rows: Mapping[str, Any],
    ) -> None:
        """Note the start of a sitting that goes on from unit `at`, behind these `rows` (`noted_rows`)."""
        earlier = self.content.get("sittings", [])
        for sitting in earlier:
            sitting["exit"] = sitting["exit"] or "killed"  # it had no time to say anything
        sitting = {
            "started": _now(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "from": at,
            **conditions,
            "notes": notes,
            "exit": None,
        }
        self.content = {
            **about,
            "command": provenance.command(),
            "versions": provenance.versions(),
            "commit": provenance.source().commit,
            "dirty": provenance.source().dirty,
            "platform": platform.platform(),
            "device": conditions["device"],
            "threads": conditions["threads"],
            "started": self.content.get("started", sitting["started"]),
            "finished": None,
            "exit": None,
            "sittings": [*earlier, sitting],
            **rows,
        }
        self._began_at = time.perf_counter()
        self._write()

    def keep_up(self, rows: Mapping[str, Any]) -> None:
        """Bring the seconds of work up to date, and what is known of the `rows` that were just saved."""
        self.content |= rows
        self._write()

    def end(self, reason: str, rows: Mapping[str, Any] | None = None) -> None:
        """Note why the sitting ended, and the `rows` that were saved at its end."""
        self.content |= rows or {}
        self.content["exit"] = self.content["sittings"][-1]["exit"] = reason
        self._write()

    def finish(self, rows: Mapping[str, Any]) -> None:
        """Note that all is done: these `rows` are complete."""
        self.content["finished"] = _now()
        self.end("finished", rows)

    def _write(self) -> None:
        seconds = self._seconds_before + time.perf_counter() - self._began_at
        self.content["seconds"] = round(seconds, 3)
        self.content[stored.CHECKSUM] = stored.checksum(self.content)
        write_json(self.path, self.content)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
