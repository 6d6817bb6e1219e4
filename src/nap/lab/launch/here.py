"""Runs one after the other in this process: for functions that no worker could import, and for short ones."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Sequence

import torch

from nap.lab.experiments.running import FAILED, pick_device, run_all
from nap.lab.experiments.tasks import Task
from nap.lab.launch.jobs import Job
from nap.lab.launch.options import TuneOptions
from nap.lab.launch.run_state import read_state
from nap.lab.runner.distributed import current_group
from nap.lab.runner.folder import RunFolder
from nap.lab.runner.signals import stop_requests


def here(title: str, todo: Sequence[Job], options: TuneOptions) -> int:
    """Do the jobs; the exit code. If the very first of them fails, so would the others: none follows."""
    device = pick_device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    gc.freeze()  # between runs garbage is collected: all that is there by now need not be looked at
    with contextlib.ExitStack() as held, stop_requests(options.time_limit) as stop:
        held.callback(gc.unfreeze)
        tasks = [_opened(number, job, options, held) for number, job in enumerate(todo)]
        begun = any(read_state(job.path).state == "finished" for job in todo)
        for some in [tasks] if begun else [tasks[:1], tasks[1:]]:
            code = run_all(some, title, device, options, current_group(), stop) if some else 0
            if code == FAILED and some is not tasks and some[0] is tasks[0]:
                return FAILED
            if stop.signal is not None:
                return code
    return code


def _opened(number: int, job: Job, options: TuneOptions, held: contextlib.ExitStack) -> Task:
    folder = RunFolder.open(job.path, **job.settings(options.scale), start_over=options.force)
    return Task(number, job.label, job.run, held.enter_context(folder))
