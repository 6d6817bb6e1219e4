"""The options of `nap sweep` and `nap tune`: those of `nap run`, and where to run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from nap.lab.options import MAX_THREADS, RunOptions, grouped, without_no

SWEEP_EXAMPLES = """\
examples:
  nap sweep {name}                                on this machine: a worker on each core or GPU
  nap sweep {name} --dry-run                      print the plan and start nothing
  nap sweep {name} --scale small --gpus 0 1 --per-gpu 2    two workers on each of two GPUs
  nap sweep {name} --engine ray --address 10.0.0.1:6379    on a Ray cluster; by default that of this machine
  nap sweep {name} --engine slurm --slurm slurm_partition=gpu timeout_min=600
  nap sweep {name} --help                         all settings with their defaults
  nap sweep {name} --scale paper --help           those of another scale"""
TUNE_EXAMPLES = """\
examples:
  nap tune {name}                                 find each arm's learning rate, at demo scale
  nap tune {name} --scale small --per-gpu 8       eight runs at a time on each GPU
  nap tune {name} --rates 1e-3 3e-3 1e-2          start from other learning rates
  nap tune {name} --time-limit 1500               stop after 25 minutes; run it again to resume
  nap tune {name} --conclude                      choose from the runs that are finished
  nap tune {name} --engine slurm --slurm slurm_partition=gpu timeout_min=600
  nap tune {name} --help                          all settings with their defaults
  nap run {name} --tuned results/{name}-demo-tuning/tuned.json    afterwards: the results at these rates"""


@dataclass(frozen=True)
class SweepOptions(RunOptions):
    """Options that every experiment has. They change where and how it runs, never its results."""

    command = "sweep"
    examples = SWEEP_EXAMPLES

    threads: int = 0
    """CPU threads of each worker; 0 is one."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """For nap run under torchrun only: a worker of a sweep is one process."""
    engine: Literal["local", "ray", "slurm"] = "local"
    """Where to run: this machine's cores and GPUs, a Ray cluster, or SLURM through submitit."""
    workers: int = 0
    """Maximal number of runs at a time; 0 is one per core or GPU here, and no limit on Ray and SLURM."""
    gpus: tuple[int, ...] = ()
    """Indices of this machine's GPUs to use; by default all."""
    per_gpu: int = 1
    """Runs that share a GPU, here or on Ray."""
    retries: int = 2
    """Restarts of a run in a row without a new checkpoint."""
    address: str = "auto"
    """Ray: address of the cluster; local starts one for this command alone."""
    slurm: tuple[str, ...] = ()
    """SLURM: KEY=VALUE for submitit, as slurm_partition=gpu timeout_min=600; cluster=local tries it here."""
    dry_run: bool = False
    """Print the plan and start nothing."""

    def check(self) -> None:
        super().check()
        _check_range("--workers", self.workers, 0, 100_000)
        _check_range("--per-gpu", self.per_gpu, 1, 1_000)
        _check_range("--retries", self.retries, 0, 1_000_000)
        _check_range("--threads", self.threads, 0, MAX_THREADS)
        if self.parallel != "ddp":
            raise ValueError(
                f"--parallel {self.parallel}: a worker of a sweep is one process; to share one run among "
                f"several, start nap run with torchrun"
            )


@dataclass(frozen=True)
class TuneOptions(SweepOptions):
    """Options that every experiment has. They change where and how it runs, never its results."""

    command = "tune"
    examples = TUNE_EXAMPLES

    tuning_seeds: int = 3
    """Seeds for each learning rate, from 100 on; results never use these."""
    rates: tuple[float, ...] = ()
    """Learning rates to start from; by default those of the experiment."""
    extend: int = 6
    """Maximal number of rates to add past an end of the grid, for an arm whose best one is there."""
    conclude: bool = False
    """Start no run: choose from the finished ones, after an interrupted search."""

    def check(self) -> None:
        super().check()
        _check_range("--tuning-seeds", self.tuning_seeds, 1, 1_000)
        _check_range("--extend", self.extend, 0, 1_000)
        if self.rates and (len(set(self.rates)) < 2 or not all(0 < rate < math.inf for rate in self.rates)):
            raise ValueError(f"--rates {' '.join(map(str, self.rates))}: name two or more, each above 0")
        if self.shard != "1/1":
            raise ValueError("--shard: nap tune compares all its runs; leave it out")


def _check_range(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        bounds = f"at least {least}" if value < least else f"at most {most:,}"
        raise ValueError(f"{option} {value}: it must be {bounds}")


# handled by the driver, or set for each worker
_NOT_FOR_WORKERS = {f.name for f in fields(TuneOptions)} - {f.name for f in fields(RunOptions)} | {
    "shard",
    "time_limit",
    "threads",
    "force",
    "report",
    "parallel",
    "out",
}


def for_workers(words: Sequence[str]) -> Iterator[str]:
    """The words of a sweep for its workers, which are `nap run`.

    >>> list(for_workers(["--seeds=3", "--engine", "ray", "--no-report", "--device", "cpu", "--dry_run"]))
    ['--seeds', '3', '--device', 'cpu']
    """
    for key, *values in grouped(words):
        if without_no(key).removeprefix("--").replace("-", "_") not in _NOT_FOR_WORKERS:
            yield from (key, *values)
