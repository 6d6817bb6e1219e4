"""manifest.json: where the rows of a folder come from, and how each sitting at them ended."""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from . import provenance
from .durable import write_json

FILE_NAME = "manifest.json"


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
        if not path.exists():
            return cls(path, {}), []
        try:
            content = json.loads(path.read_bytes())
            if isinstance(content, dict) and isinstance(content.get("sittings"), list):
                return cls(path, content), []
            reason = "not the object that a run writes"
        except ValueError as error:
            reason = str(error)
        return cls(path, {}), [f"{path.name} is damaged ({reason}): earlier sittings are forgotten"]

    @property
    def finished(self) -> str | None:
        """When the run was finished, None until it is."""
        return self.content.get("finished")

    def begin(
        self, about: Mapping[str, Any], conditions: Mapping[str, Any], notes: list[str], *, at: int
    ) -> None:
        """Note the start of a sitting that goes on from unit `at`."""
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
        }
        self._began_at = time.perf_counter()
        self._write()

    def keep_time(self) -> None:
        """Bring the seconds of work up to date."""
        self._write()

    def end(self, reason: str) -> None:
        """Note why the sitting ended."""
        self.content["exit"] = self.content["sittings"][-1]["exit"] = reason
        self._write()

    def finish(self, *, rows_bytes: int) -> None:
        """Note that all is done: rows.jsonl is complete at this length."""
        self.content |= {"finished": _now(), "rows_bytes": rows_bytes}
        self.end("finished")

    def _write(self) -> None:
        seconds = self._seconds_before + time.perf_counter() - self._began_at
        self.content["seconds"] = round(seconds, 3)
        write_json(self.path, self.content)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
