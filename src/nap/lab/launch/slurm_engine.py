"""SLURM, through submitit: each run is a job in the queue, which outlives the driver."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import submitit

from nap.lab.launch import worker_process
from nap.lab.launch.engine import EngineFull, Exit, error_line
from nap.lab.launch.jobs import Job
from nap.lab.launch.options import SweepOptions

FOLDER = "submitit"  # in the folder of results
QUERY_SECONDS = 60.0  # between queries of SLURM's accounting; a job that exits by itself is seen at once
DAY_MINUTES = 24 * 60


class Slurm:
    """Jobs that submitit hands to SLURM, or with cluster=local to processes of this machine."""

    def __init__(self, options: SweepOptions):
        settings, self._next_query = parameters(options.slurm), 0.0
        cluster = settings.pop("cluster", "slurm")
        self.workers = options.workers
        self.description = "SLURM" if cluster == "slurm" else f"submitit ({cluster})"
        defaults = {"name": "nap", "timeout_min": DAY_MINUTES, "cpus_per_task": options.threads or 1}
        if options.device == "cuda":
            defaults["gpus_per_node"] = 1
        # the local executor names jobs by process id, so each driver has a folder of its own
        folder = options.out.absolute() / FOLDER / f"{datetime.now():%Y-%m-%d-%H%M%S}-{os.getpid()}"
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._executor.update_parameters(**(defaults | settings))
        except (RuntimeError, ValueError, NameError, AssertionError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"submitit refuses: {reason} Mend --slurm KEY=VALUE, or take --engine local; "
                f"--slurm cluster=local rehearses on this machine"
            ) from error

    def submit(self, job: Job) -> SlurmJob:
        log = job.path / worker_process.LOG_NAME
        try:
            submitted = self._executor.submit(
                worker_process.run_worker, job.command, job.where, log, dict(job.environment)
            )
        except (RuntimeError, OSError) as error:  # sbatch says no
            raise EngineFull(" ".join(str(error).split())) from error
        return SlurmJob(self, submitted)

    def may_query(self) -> bool:
        """Whether to query SLURM now; one query updates the state of all jobs."""
        if time.monotonic() < self._next_query:
            return False
        self._next_query = time.monotonic() + QUERY_SECONDS
        return True


class SlurmJob:
    """A job that waits or runs."""

    def __init__(self, slurm: Slurm, job: submitit.Job[int]):
        self._slurm, self._job = slurm, job

    def poll(self) -> Exit | None:
        if not self._job.done(force_check=self._slurm.may_query()):
            return None
        try:
            return Exit(self._job.result())
        except Exception as error:  # killed, out of time, a node that is gone
            return Exit(None, f"job {self._job.job_id}: {type(error).__name__}: {error_line(str(error))}")

    def stop(self) -> None:
        self._job.cancel(check=False)  # it may have exited

    def kill(self) -> None:
        self.stop()  # SLURM kills jobs that do not exit


def parameters(words: Sequence[str]) -> dict[str, Any]:
    """The parameters for submitit in KEY=VALUE words.

    >>> parameters(["slurm_partition=gpu", "timeout_min=600", "mem_gb=1.5"])
    {'slurm_partition': 'gpu', 'timeout_min': 600, 'mem_gb': 1.5}
    """
    settings = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise ValueError(f"--slurm {word}: expected KEY=VALUE, such as slurm_partition=gpu")
        settings[key] = _number(value)
    return settings


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
