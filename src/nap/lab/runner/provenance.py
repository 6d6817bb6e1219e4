"""Where numbers come from: the code's commit, the versions and the machine."""

from __future__ import annotations

import functools
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import nap


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


def conditions(device: torch.device) -> dict[str, str | int]:
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
