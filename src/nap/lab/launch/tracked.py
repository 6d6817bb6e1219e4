"""A job and what became of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nap.lab.launch.engine import Placed
from nap.lab.launch.found import Found, Mark, mark
from nap.lab.launch.jobs import Job
from nap.lab.launch.launch import LOG_NAME

Standing = Literal["to do", "placed", "elsewhere", "finished", "failed", "refused"]
OPEN: tuple[Standing, ...] = ("to do", "placed", "elsewhere")


@dataclass
class Tracked:
    """A job and what became of it so far."""

    job: Job
    standing: Standing
    words: str = ""  # why it failed, or who works there
    vain: int = 0  # attempts in a row without a new checkpoint
    placed: Placed | None = None
    began_at: Mark = None  # the checkpoint that its worker found
    log_bytes: int = 0  # what earlier workers had said then

    def note_beginning(self) -> None:
        """Remember how things are before a worker begins."""
        log = self.job.path / LOG_NAME
        self.began_at, self.log_bytes = mark(self.job.path), log.stat().st_size if log.exists() else 0

    @property
    def needs(self) -> tuple[object, ...]:
        """What runs of an experiment that read the same data have in common."""
        values = (getattr(self.job.run.config, key, None) for key in ("data", "text", "games"))
        return self.job.experiment.name, *values


def tracked(job: Job, found: Found) -> Tracked:
    """A job as its folder says. Rows that are not those that were written are not written on to."""
    if found.edited:
        return Tracked(job, "failed", f"damaged: {found.words}")
    if found.state == "finished":
        return Tracked(job, "finished")
    return Tracked(job, "elsewhere", found.words) if found.state == "in use" else Tracked(job, "to do")


def counted(runs: Sequence[Tracked]) -> str:
    """How many runs, in words."""
    return f"{len(runs)} run{'s' * (len(runs) != 1)}"
