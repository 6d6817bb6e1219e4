"""The jobs of a sweep: one for each run, with the command line of a worker that does this run alone."""

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

from nap.lab.experiments import BUILT_IN, MODULES, UNLISTED, modules
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.experiments.tasks import select_runs, shard_slice
from nap.lab.launch.options import for_workers
from nap.lab.options import Request

WORKER = (sys.executable, "-P", "-m", "nap.lab.cli.worker")  # -P: import nothing from the working folder
EXPECTED_RUN = "NAP_SWEEP_RUN"  # environment variable of a worker: the run that its command line must mean
PLUGINS = "NAP_OWN_EXPERIMENTS"  # the same: modules of experiments, as JSON


@dataclass(frozen=True)
class Job:
    """One run: its folder, and the command line of its worker."""

    label: str
    experiment: Experiment
    run: Run
    folder: Path  # for messages
    command: tuple[str, ...]
    environment: Mapping[str, str]  # additional variables of the worker
    where: Path  # the folder that relative paths start from

    @property
    def path(self) -> Path:
        """The run's folder as an absolute path."""
        return self.where / self.folder

    def settings(self, scale: str) -> dict[str, Any]:
        """The content of the run's config.json."""
        config = json.loads(json.dumps(dataclasses.asdict(self.run.config)))
        return {
            "experiment": self.experiment.folder,
            "scale": scale,
            "run": self.run.name,
            "config": config,
        }


def jobs(requests: Sequence[tuple[Experiment, Request]], settings: Sequence[str]) -> list[Job]:
    """A job for each run of the requests; `settings` are the words after the names of experiments.

    A worker is `nap run` with the same words and --shard k/n for n runs, so each manifest names a command
    that does the same run by hand.
    """
    options = requests[0][1].options
    whole = [(each, replace(request, options=replace(options, shard="1/1"))) for each, request in requests]
    every = select_runs(whole)
    names, threads = [request.name for _, request in requests], str(options.threads or 1)
    words = (*names, *for_workers(settings), "--out", str(options.out.absolute()), "--threads", threads)
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
            command=(*WORKER, *words, "--shard", f"{n + 1}/{len(every)}"),
            environment=environment | {EXPECTED_RUN: f"{experiment.name} {run.name}"},
            where=Path.cwd(),
        )
        for n, (folder, experiment, run) in list(enumerate(every))[shard_slice(options.shard, len(every))]
    ]


def plugin_environment(names: Iterable[str]) -> dict[str, str]:
    """The environment variable by which workers find experiments that are not built in.

    Raises ValueError if workers could not import one of them.
    """
    own = {name: modules()[name] for name in names if (BUILT_IN | UNLISTED).get(name) != modules()[name]}
    for name, module in own.items():
        if not _is_in_a_file(module):
            raise ValueError(
                f"{name}: workers cannot import {module}, which holds its EXPERIMENT, since no file of that "
                f"name is in sys.path; put it into a module of its own, and that into MODULES"
            )
    folders = [os.path.abspath(folder) for folder in sys.path]  # "" is the current one
    return {PLUGINS: json.dumps({"modules": own, "folders": folders})} if own else {}


def adopt_plugins() -> None:
    """In a worker: register the experiments of `plugin_environment`."""
    plugins = json.loads(os.environ.get(PLUGINS, "null"))
    if plugins is not None:
        MODULES.update(plugins["modules"])
        sys.path[:] = dict.fromkeys([*plugins["folders"], *sys.path])  # in the driver's order


def _is_in_a_file(module: str) -> bool:
    try:
        spec = find_spec(module.partition(":")[0])
    except (ImportError, ValueError):  # no such package; a module without a file, as __main__
        return False
    return spec is not None and spec.origin is not None
