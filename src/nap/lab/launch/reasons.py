"""Why a worker ended, in words for a reader."""

from __future__ import annotations

from nap.lab.launch.engine import End
from nap.lab.launch.jobs import Job
from nap.lab.launch.launch import LOG_NAME
from nap.lab.runner.run import STOPPED


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
