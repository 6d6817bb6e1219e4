"""What there is to do: a job for each run, with the words that make a worker do it and nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nap.lab.experiments import BUILT_IN, MODULES, OWN, modules
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.experiments.tasks import chosen, shard_slice
from nap.lab.launch.options import for_workers
from nap.lab.options import Request

WORKER = (sys.executable, "-P", "-m", "nap.lab.cli.worker")  # -P: nothing is imported from where it runs
MEANT = "NAP_SWEEP_RUN"  # in a worker's environment: the run that it is to find


@dataclass(frozen=True)
class Job:
    """One run: where it lies, and the command of a worker that does it."""

    label: str
    experiment: Experiment
    run: Run
    folder: Path  # as the driver's reader knows it
    command: tuple[str, ...]
    environment: Mapping[str, str]  # what a worker needs besides its own
    where: Path  # the folder that relative paths in the settings start from

    @property
    def path(self) -> Path:
        """The run's folder, for a process that works elsewhere."""
        return self.where / self.folder

    def settings(self, scale: str) -> dict[str, Any]:
        """What config.json holds once the run has begun."""
        config = json.loads(json.dumps(dataclasses.asdict(self.run.config)))
        return {
            "experiment": self.experiment.folder,
            "scale": scale,
            "run": self.run.name,
            "config": config,
        }


def jobs(requests: Sequence[tuple[Experiment, Request]], settings: Sequence[str]) -> list[Job]:
    """A job for each run that was asked for; `settings` are the words that followed the names.

    A worker is `nap run` with the same words and --shard k/n, n being the number of all runs: that shard
    is one run. So a manifest names a command that does the same by hand, wherever that is given.
    """
    options = requests[0][1].options
    whole = [(each, replace(request, options=replace(options, shard="1/1"))) for each, request in requests]
    every = chosen(whole)
    names, passed_on = [request.name for _, request in requests], list(for_workers(settings))
    threads = str(options.threads or 1)
    same = ("--out", str(options.out.absolute()), "--threads", threads)
    environment = {"OMP_NUM_THREADS": threads} | {
        key: value for key, value in os.environ.items() if key.startswith("NAP_")
    }
    environment |= plugin_environment(names)
    return [
        Job(
            label=run.name if len(requests) == 1 else f"{experiment.name} {run.name}",
            experiment=experiment,
            run=run,
            folder=folder,
            command=(*WORKER, *names, *passed_on, *same, "--shard", f"{n + 1}/{len(every)}"),
            environment=environment | {MEANT: f"{experiment.name} {run.name}"},
            where=Path.cwd(),
        )
        for n, (folder, experiment, run) in list(enumerate(every))[shard_slice(options.shard, len(every))]
    ]


VARIABLE = "NAP_OWN_EXPERIMENTS"


def plugin_environment(names: Iterable[str]) -> dict[str, str]:
    """What the environment of workers has more: the modules of these experiments, and where to look for them.

    Raises ValueError where a worker could not import one of them.
    """
    own = {name: modules()[name] for name in names if (BUILT_IN | OWN).get(name) != modules()[name]}
    for name, module in own.items():
        if not _is_in_a_file(module):
            raise ValueError(
                f"{name}: workers cannot import {module}, which holds its EXPERIMENT, since no file of that "
                f"name is in sys.path; put it into a module of its own, and that into MODULES"
            )
    folders = [os.path.abspath(folder) for folder in sys.path]  # "" is the current one
    return {VARIABLE: json.dumps({"modules": own, "folders": folders})} if own else {}


def adopt_plugins() -> None:
    """Know here, in a worker, what `plugin_environment` gave the driver's environment for it."""
    told = json.loads(os.environ.get(VARIABLE, "null"))
    if told is not None:
        MODULES.update(told["modules"])
        sys.path[:] = dict.fromkeys([*told["folders"], *sys.path])  # in the driver's order


def _is_in_a_file(module: str) -> bool:
    try:
        found = find_spec(module.partition(":")[0])
    except (ImportError, ValueError):  # a package that is not there; one made without a file, as __main__
        return False
    return found is not None and found.origin is not None
