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
            "command": command(),
            "versions": versions(),
            "commit": source().commit,
            "dirty": source().dirty,
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


@dataclass(frozen=True)
class Source:
    """The commit that the running code belongs to; `dirty` where files differ from it."""

    commit: str  # short, or "unknown" outside of a checkout
    dirty: bool = False

    def __str__(self) -> str:
        return f"{self.commit}+changes" if self.dirty else self.commit


@functools.cache
def source() -> Source:
    """The state of this package's source tree, read once: later edits do not change what is running."""
    return source_of(Path(__file__).resolve().parents[2])


def source_of(package: Path) -> Source:
    """The commit of the checkout that tracks `package`.

    A package that lies untracked in somebody else's checkout, in a virtual environment for example,
    has no commit of its own.
    """
    commit = _git(package, "rev-parse", "--short=10", "HEAD")
    if commit is None or not _git(package, "ls-files", "--", "__init__.py"):
        return Source("unknown")
    return Source(commit, dirty=bool(_git(package, "status", "--porcelain", "--", ".")))


def command() -> list[str]:
    """The words that started this process, with the program by its name."""
    program = Path(sys.argv[0])
    return ["nap" if program.name == "__main__.py" else program.name, *sys.argv[1:]]


def versions() -> dict[str, str]:
    """Versions of all that computes."""
    return {
        "nap": nap.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def conditions_of(device: torch.device) -> dict[str, str | int]:
    """What has to stay the same for results to stay the same to the last bit."""
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
