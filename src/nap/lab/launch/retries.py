"""A job, what became of it so far, and what follows when its worker has ended: run again, wait, or fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nap.lab.launch.engine import End, Placed
from nap.lab.launch.jobs import Job
from nap.lab.launch.run_state import Mark, RunState, mark
from nap.lab.launch.worker_process import LOG_NAME
from nap.lab.runner.run import STOPPED

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


def tracked(job: Job, found: RunState) -> Tracked:
    """A job as its folder says. Rows that are not those that were written are not written on to."""
    if found.edited:
        return Tracked(job, "failed", f"damaged: {found.words}")
    if found.state == "finished":
        return Tracked(job, "finished")
    return Tracked(job, "elsewhere", found.words) if found.state == "in use" else Tracked(job, "to do")


def counted(runs: Sequence[Tracked]) -> str:
    """How many runs, in words."""
    return f"{len(runs)} run{'s' * (len(runs) != 1)}"


Step = Literal["finished", "again", "elsewhere", "failed", "refused"]
FAILED, BAD_USAGE, IN_USE = 1, 2, 3  # exit codes of `nap run` that are told apart
NO_DATA = 4  # a worker's own: `nap run` ends with 2 then


@dataclass(frozen=True)
class Next:
    """What to do with a run, and how many attempts at it in a row were in vain."""

    step: Step
    vain: int


def after(end: End, found: RunState, *, moved: bool, vain: int, retries: int) -> Next:
    """What to do next with a run.

    Args:
        end: how its worker ended.
        found: what its folder says now; where that says "finished", nothing else matters.
        moved: whether there is a new checkpoint since the worker began. An attempt without one was in
            vain, whether it failed or was killed; `retries` of them in a row are forgiven.
        vain: attempts in vain before this one.

    >>> after(End(-9), RunState("begun", "killed"), moved=True, vain=2, retries=2)
    Next(step='again', vain=0)
    >>> after(End(-9), RunState("begun", "killed"), moved=False, vain=2, retries=2)
    Next(step='failed', vain=3)
    """
    if found.state == "finished":
        return Next("finished", 0)
    if found.state == "in use" or end.code == IN_USE:
        return Next("elsewhere", vain)
    if end.code in (BAD_USAGE, NO_DATA):
        return Next("refused", vain)
    vain = 0 if moved else vain + 1
    return Next("failed" if vain > retries or found.hopeless else "again", vain)


def reason(job: Job, end: End, since: int = 0) -> str:
    """Why a worker ended, in its own words if it had some: it wrote them to its log, behind `since` bytes."""
    if end.code is None or end.code <= 0 or end.code == STOPPED:
        return str(end)
    said = "\n" + _said(job, since).strip()
    for prefix in (f"\n{job.label}: failed: ", "\nnap run: ", "\nnap: "):
        if prefix in said:
            words = said[said.rindex(prefix) + len(prefix) :]
            return words.split("\n")[0] if prefix.endswith("failed: ") else words
    last = said.split("\n")[-1].strip()
    return f"{end}: {last} (more in {job.folder / LOG_NAME})" if last else str(end)


def _said(job: Job, since: int) -> str:
    try:
        with (job.path / LOG_NAME).open("rb") as file:
            file.seek(since)
            return file.read().decode("utf-8", errors="replace")
    except OSError:  # no log, or a folder that cannot be read: that may be why it ended
        return ""
