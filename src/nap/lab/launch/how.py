"""The options of `nap sweep`: those of `nap run`, and where to place the runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from nap.lab.options import MOST_THREADS, How, bare, groups

EXAMPLES = """\
examples:
  nap sweep {name}                                on this machine: a worker on each core or GPU
  nap sweep {name} --dry-run                      what there is to do; nothing is started
  nap sweep {name} --scale small --per-gpu 2      two workers on each GPU
  nap sweep {name} --engine ray                   on the Ray cluster that this machine belongs to
  nap sweep {name} --engine slurm --slurm slurm_partition=gpu timeout_min=600
  nap sweep {name} --scale paper --help           the settings and defaults of another scale"""


@dataclass(frozen=True)
class Sweeping(How):
    """How to run, and where."""

    command = "sweep"
    examples = EXAMPLES

    threads: int = 0
    """CPU threads of each worker; 0 takes one."""
    spread: Literal["ddp", "fsdp"] = "ddp"
    """Not for sweeps: a worker is one process; `nap run` under torchrun has it."""
    engine: Literal["local", "ray", "slurm"] = "local"
    """Who places the runs: this machine's cores and GPUs, a Ray cluster, or SLURM through submitit."""
    workers: int = 0
    """Runs at the same time; 0 takes one a core or GPU here, and leaves it to the queue of Ray or SLURM."""
    gpus: tuple[int, ...] = ()
    """GPUs of this machine to use, by number; all of them unless some are named."""
    per_gpu: int = 1
    """Runs that share a GPU, here or on Ray."""
    retries: int = 2
    """How often in a row a run may end in vain, without a new checkpoint, and is begun once more."""
    address: str = "auto"
    """Ray: where its cluster is; local starts one for this command alone."""
    slurm: tuple[str, ...] = ()
    """SLURM: KEY=VALUE for submitit, as slurm_partition=gpu timeout_min=600; cluster=local rehearses here."""
    dry_run: bool = False
    """Print what there is to do, and do nothing."""

    def check(self) -> None:
        super().check()
        for name, least, most in (
            ("workers", 0, 100_000),
            ("per_gpu", 1, 1_000),
            ("retries", 0, 1_000_000),
            ("threads", 0, MOST_THREADS),
        ):
            if not least <= (value := getattr(self, name)) <= most:
                bounds = f"at least {least}" if value < least else f"at most {most:,}"
                raise ValueError(f"--{name.replace('_', '-')} {value}: it must be {bounds}")
        if self.spread != "ddp":
            raise ValueError(
                f"--spread {self.spread}: a worker of a sweep is one process; share a run among several "
                f"with torchrun and nap run"
            )


TUNING_ALONE = ("tuning_seeds", "rates", "extend", "conclude")  # options of `nap tune` that no worker knows
# what a worker is not told: the driver sees to it, once, or says it otherwise
_DRIVERS_OWN = {f.name for f in fields(Sweeping)} - {f.name for f in fields(How)} | {
    *TUNING_ALONE,
    "part",
    "time_limit",
    "threads",
    "force",
    "report",
    "spread",
    "out",
}


def for_workers(settings: Sequence[str]) -> Iterator[str]:
    """The settings that are passed on to `nap run`, as they were given.

    >>> list(for_workers(["--seeds=3", "--engine", "ray", "--no-report", "--device", "cpu", "--dry_run"]))
    ['--seeds', '3', '--device', 'cpu']
    """
    for key, *values in groups(settings):
        if bare(key).removeprefix("--").replace("-", "_") not in _DRIVERS_OWN:
            yield from (key, *values)
