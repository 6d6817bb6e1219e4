"""`nap compare`: a user's own training, plain, with normalization only, and with NaP.

Each arm's learning rate is chosen on tuning seeds, as by `nap tune`; the results are of other seeds at these
rates. Finished runs are not repeated.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from nap.lab import rows
from nap.lab.aliases import slug
from nap.lab.claims import Result, evaluate
from nap.lab.experiments.compare import EXPERIMENT
from nap.lab.experiments.compare.config import ARMS, ArmName, CompareConfig
from nap.lab.experiments.compare.figure import HEAD, lines
from nap.lab.experiments.compare.runs import Function, Trial, load, runs
from nap.lab.experiments.running import FAILED, FINISHED, pick_device, run_all
from nap.lab.experiments.tasks import Task, experiment_folder, print_results
from nap.lab.experiments.tuned import FILE_NAME, Tuned
from nap.lab.launch.jobs import Job, jobs
from nap.lab.launch.options import TuneOptions
from nap.lab.launch.run_state import read_state
from nap.lab.launch.tune import Drive, Search, is_at_an_end, on_engine, save_rates, search_rates
from nap.lab.options import Request
from nap.lab.rows import Rows
from nap.lab.runner.distributed import current_group
from nap.lab.runner.folder import RunFolder
from nap.lab.runner.run import STOPPED
from nap.lab.runner.signals import stop_requests

__all__ = ["Comparison", "Trial", "compare"]


@dataclass(frozen=True)
class Comparison:
    """The results; `code` is the exit code of `nap compare`."""

    code: int
    folder: Path
    tuned: Tuned | None = None  # results by learning rate, on the tuning seeds
    rows: Rows = field(default_factory=Rows)  # at the best rates, of the other seeds
    results: Sequence[Result] = ()  # claims and their evidence


def compare(
    function: str | Callable[[Trial], float | Iterable[float]],
    *,
    rates: Iterable[float] = (),
    seeds: int = 5,
    tuning_seeds: int = 3,
    goal: Literal["highest", "lowest"] = "highest",
    arms: Sequence[str] | None = None,
    out: Path | str = "results",
    engine: Literal["here", "local", "ray", "slurm"] = "here",
    report: bool = False,
    **options: object,
) -> Comparison:
    """Call `function` for each arm, learning rate and seed, and print which arm is better.

    Args:
        function: takes a `Trial`, gets its optimizer from it, trains, and returns a number, or yields
            numbers whose mean is the result. Or "FILE.py:FUNCTION".
        rates: learning rates to start from; the grid is extended where an arm's best is at its end.
        seeds: number of seeds of the results, from 0 on; set before each call.
        tuning_seeds: number of seeds for each rate, from 100 on, which results never use.
        arms: some of "plain", "norm only" and "NaP"; by default all.
        engine: "here", one after the other in this process; or "local", "ray" or "slurm", as in
            `nap sweep`, for a function in a file.
        options: other options of `nap tune`, such as device="cuda", workers=4, time_limit=600.
    """
    target = function if isinstance(function, str) else ""
    called = load(target) if isinstance(function, str) else function
    if not target and engine != "here":
        raise ValueError(f"engine={engine!r} needs a function that workers can import: 'FILE.py:FUNCTION'")
    config = CompareConfig(target=target, goal=goal, arms=_arms(arms), seeds=seeds)
    name = f"{Path(target.rpartition(':')[0]).stem} " * bool(target) + getattr(called, "__name__", "function")
    settings = TuneOptions(
        out=Path(out) / f"compare-{slug(name)}",
        rates=tuple(rates),
        tuning_seeds=tuning_seeds,
        engine="local" if engine == "here" else engine,
        report=report,
        **options,  # type: ignore[arg-type]
    )
    settings.check()
    drive: Drive = run_here if engine == "here" else on_engine
    return _compare(config, called, settings, drive)


def _arms(names: Sequence[str] | None) -> tuple[ArmName, ...]:
    """The arms of these names, in upper or lower case."""
    known = {arm.lower(): arm for arm in ARMS}
    for name in names or ():
        if name.lower() not in known:
            raise ValueError(f"there is no arm {name!r}; there are {', '.join(map(repr, ARMS))}")
    return ARMS if not names else tuple(dict.fromkeys(known[name.lower()] for name in names))


def _compare(config: CompareConfig, function: Function, options: TuneOptions, drive: Drive) -> Comparison:
    assert EXPERIMENT.tuning is not None
    tuning = replace(EXPERIMENT.tuning, goal=config.goal)
    experiment = replace(EXPERIMENT, tuning=tuning, runs=partial(runs, function=function))
    words = ["--target", config.target, "--goal", config.goal, "--arms", *config.arms]
    words += ["--device", options.device, "--seeds", str(config.seeds)]
    request = Request(experiment.name, options, config)
    search = Search(experiment, request, words, tuning)
    code, tuned = search_rates(search, options, drive)
    if code == STOPPED:
        return Comparison(STOPPED, options.out, tuned)
    if not any(group.best(tuning) for group in tuned.groups.values()):
        print(f"No training finished; the error of the first one is in {search.folder}")
        return Comparison(FAILED, options.out, tuned)
    if not save_rates(tuned, search.folder):
        return Comparison(FAILED, options.out, tuned)
    is_at_an_end(tuned, options)
    at_best = replace(options, tuned=search.folder / FILE_NAME)
    requests = [(tuned.applied(experiment), replace(request, options=at_best))]
    words += ["--tuned", str((search.folder / FILE_NAME).absolute())]
    code = drive("results", jobs(requests, words), at_best)
    if code == STOPPED:
        return Comparison(STOPPED, options.out, tuned)
    results = rows.read(experiment_folder(experiment, at_best))
    Console().print(_table(results, config))
    print_results(options.out, with_report=options.report)
    return Comparison(code, options.out, tuned, results, evaluate(results))


def _table(results: Rows, config: CompareConfig) -> Table:
    table = Table(title=f"Results: the {config.goal} is the best", box=SIMPLE, padding=(0, 1))
    for heading in HEAD:
        table.add_column(heading, justify="left" if heading == "arm" else "right")
    for line in lines(results):
        table.add_row(*line)
    return table


def run_here(title: str, todo: Sequence[Job], options: TuneOptions) -> int:
    """Run the jobs one after the other in this process; stops if the very first of them fails."""
    device = pick_device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    gc.freeze()  # garbage is collected between runs, which need not look at what exists by now
    with contextlib.ExitStack() as stack, stop_requests(options.time_limit) as stop:
        stack.callback(gc.unfreeze)
        tasks = [_open_task(number, job, options, stack) for number, job in enumerate(todo)]
        begun = any(read_state(job.path).state == "finished" for job in todo)
        code = FINISHED
        for part in [tasks] if begun else [tasks[:1], tasks[1:]]:
            if part:
                code = run_all(part, title, device, options, current_group(), stop)
            if stop.signal is not None or (code == FAILED and not begun and part[:1] == tasks[:1]):
                break
    return code


def _open_task(number: int, job: Job, options: TuneOptions, stack: contextlib.ExitStack) -> Task:
    folder = RunFolder.open(job.path, **job.settings(options.scale), start_over=options.force)
    return Task(number, job.label, job.run, stack.enter_context(folder))
