"""manifest.json: where rows come from (commit, versions, machine), and how each session at them ended."""

from __future__ import annotations

import functools
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import nap
from nap.lab import stored
from nap.lab.files import write_json

FILE_NAME = stored.MANIFEST


class Manifest:
    """The manifest of a run's folder; each session has an entry in `sessions`. Changes are on disk at once.

    The `exit` of a session is null while it runs, and stays null if it is killed.
    """

    def __init__(self, path: Path, content: dict[str, Any]):
        self.path, self.content = path, content
        self._began_at = time.perf_counter()
        self._seconds_before = content.get("seconds", 0.0)

    @classmethod
    def read(cls, path: Path) -> tuple[Manifest, list[str]]:
        """The manifest at `path`, or an empty one; with a note if it was damaged."""
        content, damage = stored.read_manifest(path)
        return cls(path, content), [f"{damage}: earlier sessions are forgotten"] if damage else []

    @property
    def finished(self) -> str | None:
        """When the run was finished; None until then."""
        return self.content.get("finished")

    @property
    def under_way(self) -> bool:
        """Whether the run was started and is not finished."""
        return bool(self.content.get("sessions")) and self.finished is None

    @property
    def rows_saved(self) -> int | None:
        """Bytes of rows at the last checkpoint; None in older manifests."""
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
        """Record the start of a session at unit `at`, with the `rows_digest` of the rows so far."""
        earlier = self.content.get("sessions", [])
        for session in earlier:
            session["exit"] = session["exit"] or "killed"
        session = {
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
            "command": command(),
            "versions": versions(),
            "commit": source().commit,
            "dirty": source().dirty,
            "platform": platform.platform(),
            "device": conditions["device"],
            "threads": conditions["threads"],
            "started": self.content.get("started", session["started"]),
            "finished": None,
            "exit": None,
            "sessions": [*earlier, session],
            **rows,
        }
        self._began_at = time.perf_counter()
        self._write()

    def update(self, rows: Mapping[str, Any]) -> None:
        """Record the `rows_digest` at a checkpoint, and the seconds so far."""
        self.content |= rows
        self._write()

    def end(self, reason: str, rows: Mapping[str, Any] | None = None) -> None:
        """Record why the session ended, and the `rows_digest` then."""
        self.content |= rows or {}
        self.content["exit"] = self.content["sessions"][-1]["exit"] = reason
        self._write()

    def finish(self, rows: Mapping[str, Any]) -> None:
        """Record that the run is finished with these rows."""
        self.content["finished"] = _now()
        self.end("finished", rows)

    def _write(self) -> None:
        seconds = self._seconds_before + time.perf_counter() - self._began_at
        self.content["seconds"] = round(seconds, 3)
        self.content[stored.CHECKSUM] = stored.checksum(self.content)
        write_json(self.path, self.content)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True)
class Source:
    """The commit of the running code; `dirty` if files differ from it."""

    commit: str  # short, or "unknown" outside of a checkout
    dirty: bool = False

    def __str__(self) -> str:
        return f"{self.commit}+changes" if self.dirty else self.commit


@functools.cache
def source() -> Source:
    """The commit of this package, read once: later edits do not change the code that is running."""
    return source_of(Path(__file__).resolve().parents[2])


def source_of(package: Path) -> Source:
    """The commit of the checkout that tracks `package`; "unknown" for a package in site-packages."""
    commit = _git(package, "rev-parse", "--short=10", "HEAD")
    if commit is None or not _git(package, "ls-files", "--", "__init__.py"):
        return Source("unknown")
    return Source(commit, dirty=bool(_git(package, "status", "--porcelain", "--", ".")))


def command() -> list[str]:
    """The command line of this process, with the program's name without its folder."""
    program = Path(sys.argv[0])
    return ["nap" if program.name == "__main__.py" else program.name, *sys.argv[1:]]


def versions() -> dict[str, str]:
    """Versions of nap, Python, torch and NumPy."""
    return {
        "nap": nap.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def conditions_of(device: torch.device) -> dict[str, str | int]:
    """What must stay the same for rows to stay the same bit for bit."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return {
        "device": f"{device.type} ({name})",
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "commit": str(source()),
    }


def _git(folder: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *command], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None  # no git, no checkout, or not ours to read
    return done.stdout.strip()
