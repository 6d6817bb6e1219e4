"""What to do when a worker exits: finish, run again, wait for another process, or give up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nap.lab.launch.engine import Exit, Handle
from nap.lab.launch.jobs import Job
from nap.lab.launch.run_state import RunState, Stamp, checkpoint_stamp
from nap.lab.launch.worker_process import LOG_NAME
from nap.lab.runner.run import STOPPED

Status = Literal["to do", "submitted", "elsewhere", "finished", "failed", "refused"]
OPEN: tuple[Status, ...] = ("to do", "submitted", "elsewhere")
FAILED, BAD_USAGE, IN_USE = 1, 2, 3  # exit codes of `nap run`
NO_DATA = 4  # of a worker only; `nap run` exits with 2 then


@dataclass
class Tracked:
    """A job and its progress in this sweep."""

    job: Job
    status: Status
    detail: str = ""  # why it failed, or who else runs it
    attempts: int = 0  # in a row without a new checkpoint
    handle: Handle | None = None
    stamp: Stamp = None  # of the checkpoint when its worker was submitted
    log_bytes: int = 0  # length of its log then

    def remember(self) -> None:
        """Record checkpoint and log before a worker is submitted."""
        log = self.job.path / LOG_NAME
        self.stamp = checkpoint_stamp(self.job.path)
        self.log_bytes = log.stat().st_size if log.exists() else 0

    @property
    def data(self) -> tuple[object, ...]:
        """Equal for runs of an experiment that read the same data."""
        values = (getattr(self.job.run.config, key, None) for key in ("data", "text", "games"))
        return self.job.experiment.name, *values


def track(job: Job, state: RunState) -> Tracked:
    """A job with the status that its folder gives it."""
    if state.rows_changed:
        return Tracked(job, "failed", f"damaged: {state.detail}")
    if state.state == "finished":
        return Tracked(job, "finished")
    return Tracked(job, "elsewhere", state.detail) if state.state == "in use" else Tracked(job, "to do")


def count_runs(runs: Sequence[Tracked]) -> str:
    return f"{len(runs)} run{'s' * (len(runs) != 1)}"


@dataclass(frozen=True)
class Decision:
    """What to do with a run, and its attempts in a row without a new checkpoint."""

    step: Literal["finished", "again", "elsewhere", "failed", "refused"]
    attempts: int


def decide(end: Exit, state: RunState, *, progressed: bool, attempts: int, retries: int) -> Decision:
    """What to do with a run whose worker has exited.

    Args:
        state: of its folder now; if "finished", nothing else matters.
        progressed: whether there is a new checkpoint since the worker was submitted. Otherwise the attempt
            counts, whether it failed or was killed; `retries` of them in a row are allowed.
        attempts: without a new checkpoint before this one.

    >>> decide(Exit(-9), RunState("begun", "killed"), progressed=True, attempts=2, retries=2)
    Decision(step='again', attempts=0)
    >>> decide(Exit(-9), RunState("begun", "killed"), progressed=False, attempts=2, retries=2)
    Decision(step='failed', attempts=3)
    """
    if state.state == "finished":
        return Decision("finished", 0)
    if state.state == "in use" or end.code == IN_USE:
        return Decision("elsewhere", attempts)
    if end.code in (BAD_USAGE, NO_DATA):
        return Decision("refused", attempts)
    attempts = 0 if progressed else attempts + 1
    return Decision("failed" if attempts > retries or state.is_permanent else "again", attempts)


def exit_reason(job: Job, end: Exit, since: int = 0) -> str:
    """Why a worker exited: its last message in its log after `since` bytes, else its exit code."""
    if end.code is None or end.code <= 0 or end.code == STOPPED:
        return str(end)
    log = "\n" + _read_log(job, since).strip()
    for prefix in (f"\n{job.label}: failed: ", "\nnap run: ", "\nnap: "):
        if prefix in log:
            message = log[log.rindex(prefix) + len(prefix) :]
            return message.split("\n")[0] if prefix.endswith("failed: ") else message
    last = log.split("\n")[-1].strip()
    return f"{end}: {last} (more in {job.folder / LOG_NAME})" if last else str(end)


def _read_log(job: Job, since: int) -> str:
    try:
        with (job.path / LOG_NAME).open("rb") as file:
            file.seek(since)
            return file.read().decode("utf-8", errors="replace")
    except OSError:  # no log, or an unreadable folder
        return ""
