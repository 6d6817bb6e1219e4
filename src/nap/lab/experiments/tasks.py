"""The runs that were asked for, each with its folder, open and locked."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.options import How, Request
from nap.lab.runs.folder import RunFolder

BOARD = "tensorboard"  # in a run's folder


@dataclass(frozen=True)
class Task:
    """A run with its folder, which this process holds."""

    label: str
    run: Run
    folder: RunFolder


def home(experiment: Experiment, how: How) -> Path:
    """The folder of an experiment's runs at one scale."""
    return how.out / f"{experiment.folder}-{how.scale}"


def open_tasks(requests: Sequence[tuple[Experiment, Request]], held: contextlib.ExitStack) -> list[Task]:
    """Every run with its folder, for as long as `held`; experiments that measure the same runs share them."""
    tasks: dict[Path, Task] = {}
    for experiment, request in requests:
        for run in experiment.runs(request.config):
            path = home(experiment, request.how) / run.name
            if path in tasks and tasks[path].run.config == run.config:
                continue
            folder = RunFolder.open(
                path,
                experiment=experiment.folder,
                scale=request.how.scale,
                run=run.name,
                config=run.config,
                start_over=request.how.force,
            )
            held.enter_context(folder)
            label = run.name if len(requests) == 1 else f"{experiment.name} {run.name}"
            tasks[path] = Task(label, run, folder)
            if request.how.force:
                shutil.rmtree(path / BOARD, ignore_errors=True)
    return list(tasks.values())
