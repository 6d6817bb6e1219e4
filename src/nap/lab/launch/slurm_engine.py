"""SLURM, through submitit: each job is a job of the queue, and outlives the driver."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import submitit

from nap.lab.launch import worker_process
from nap.lab.launch.engine import End, NotTaken, gist
from nap.lab.launch.jobs import Job
from nap.lab.launch.options import SweepOptions

FOLDER = "submitit"  # in the folder of results: what submitit writes for each job
ASK_EVERY_SECONDS = 60.0  # SLURM's accounting; a job that ends by itself is seen at once
DAY_MINUTES = 24 * 60


class Slurm:
    """Jobs that submitit hands to SLURM, or with cluster=local to processes of this machine."""

    def __init__(self, options: SweepOptions):
        given, self._next_asked = parameters(options.slurm), 0.0
        cluster = given.pop("cluster", "slurm")
        self.workers, self.words = options.workers, "SLURM" if cluster == "slurm" else f"submitit ({cluster})"
        defaults = {"name": "nap", "timeout_min": DAY_MINUTES, "cpus_per_task": options.threads or 1}
        if options.device == "cuda":
            defaults["gpus_per_node"] = 1
        try:
            self._executor = submitit.AutoExecutor(folder=_own_folder(options), cluster=cluster)
            self._executor.update_parameters(**(defaults | given))
        except (RuntimeError, ValueError, NameError, AssertionError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"submitit refuses: {reason} Mend --slurm KEY=VALUE, or take --engine local; "
                f"--slurm cluster=local rehearses on this machine"
            ) from error

    def place(self, job: Job) -> Queued:
        log = job.path / worker_process.LOG_NAME
        try:
            placed = self._executor.submit(
                worker_process.run_worker, job.command, job.where, log, dict(job.environment)
            )
        except (RuntimeError, OSError) as error:  # sbatch says no
            raise NotTaken(" ".join(str(error).split())) from error
        return Queued(self, placed)

    def is_time_to_ask(self) -> bool:
        """Whether to ask for the state of jobs that left no result; the answer is for all of them."""
        if time.monotonic() < self._next_asked:
            return False
        self._next_asked = time.monotonic() + ASK_EVERY_SECONDS
        return True


class Queued:
    """A job that waits or works."""

    def __init__(self, slurm: Slurm, job: submitit.Job[int]):
        self._slurm, self._job = slurm, job

    def ended(self) -> End | None:
        if not self._job.done(force_check=self._slurm.is_time_to_ask()):
            return None
        try:
            return End(self._job.result())
        except Exception as error:  # whatever ended it: killed, out of time, a node that is gone
            return End(None, f"job {self._job.job_id}: {type(error).__name__}: {gist(str(error))}")

    def stop(self) -> None:
        self._job.cancel(check=False)  # it may have ended by itself

    def kill(self) -> None:
        self.stop()  # SLURM kills what does not end


def _own_folder(options: SweepOptions) -> Path:
    """A folder for this driver's jobs: the local executor names jobs by process, and those come again."""
    return options.out.absolute() / FOLDER / f"{datetime.now():%Y-%m-%d-%H%M%S}-{os.getpid()}"


def parameters(words: Sequence[str]) -> dict[str, Any]:
    """What submitit is to be told.

    >>> parameters(["slurm_partition=gpu", "timeout_min=600", "mem_gb=1.5"])
    {'slurm_partition': 'gpu', 'timeout_min': 600, 'mem_gb': 1.5}
    """
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise ValueError(f"--slurm {word}: expected KEY=VALUE, such as slurm_partition=gpu")
        found[key] = _number(value)
    return found


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text
