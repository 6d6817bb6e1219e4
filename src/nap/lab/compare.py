"""`nap compare`: a training of one's own, plain, with normalization only, and with NaP.

Each arm's learning rate is found on tuning seeds, as `nap tune` does; results are of other seeds, at these
rates. Runs are folders: what is finished is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

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
from nap.lab.experiments.tasks import home, show
from nap.lab.experiments.tuned import FILE_NAME, Tuned
from nap.lab.launch.here import here
from nap.lab.launch.jobs import jobs
from nap.lab.launch.options import TuneOptions
from nap.lab.launch.tune import Drive, Search, at_an_end, decided, on_engine, searched
from nap.lab.options import Request
from nap.lab.rows import Rows
from nap.lab.runner.run import STOPPED

__all__ = ["Comparison", "Trial", "compare"]
FINISHED, FAILED = 0, 1


@dataclass(frozen=True)
class Comparison:
    """What came out; `code` is 0 where all is finished, else as that of `nap run`."""

    code: int
    folder: Path
    tuned: Tuned | None = None  # results by learning rate on the tuning seeds
    rows: Rows = field(default_factory=Rows)  # of the other seeds, at the best rates
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
    """Train by `function` in each arm over learning rates and seeds, and print which is better.

    Args:
        function: takes a `Trial`, asks it for its optimizer, trains, and returns its result, a number; or
            yields numbers, whose mean is the result. Or "FILE.py:FUNCTION".
        rates: learning rates to start from; the search goes on past the ends where an arm's best lies there.
        seeds: of the results, from 0 on. Global random states are seeded before each call.
        tuning_seeds: for each rate, from 100 on; results never use them.
        arms: some of "plain", "norm only" and "NaP", which are all.
        goal: whether the highest result is the best, or the lowest.
        engine: "here", one after the other in this process; or on the "local" cores and GPUs, "ray" or
            "slurm", for functions of a file.
        options: more options of `nap tune`, such as device="cuda", workers=4, time_limit=600.
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
    drive: Drive = here if engine == "here" else on_engine
    return _compared(config, called, settings, drive)


def _arms(names: Sequence[str] | None) -> tuple[ArmName, ...]:
    """The arms of these names, in any case."""
    known = {arm.lower(): arm for arm in ARMS}
    for name in names or ():
        if name.lower() not in known:
            raise ValueError(f"there is no arm {name!r}; there are {', '.join(map(repr, ARMS))}")
    return ARMS if not names else tuple(dict.fromkeys(known[name.lower()] for name in names))


def _compared(config: CompareConfig, function: Function, options: TuneOptions, drive: Drive) -> Comparison:
    assert EXPERIMENT.tuning is not None
    tuning = replace(EXPERIMENT.tuning, goal=config.goal)
    experiment = replace(EXPERIMENT, tuning=tuning, runs=partial(runs, function=function))
    words = ["--target", config.target, "--goal", config.goal, "--arms", *config.arms]
    words += ["--device", options.device, "--seeds", str(config.seeds)]
    request = Request(experiment.name, options, config)
    search = Search(experiment, request, words, tuning)
    code, found = searched(search, options, drive)
    if code == STOPPED:
        return Comparison(STOPPED, options.out, found)
    if not any(group.best(tuning) for group in found.groups.values()):
        print(f"No training came to its end; the first one's error is in {search.folder}")
        return Comparison(FAILED, options.out, found)
    if not decided(found, search.folder):
        return Comparison(FAILED, options.out, found)
    at_an_end(found, options)
    at_best = replace(options, tuned=search.folder / FILE_NAME)
    asked = [(found.applied(experiment), replace(request, options=at_best))]
    words += ["--tuned", str((search.folder / FILE_NAME).absolute())]
    code = drive("results", jobs(asked, words), at_best)
    if code == STOPPED:
        return Comparison(STOPPED, options.out, found)
    made = rows.read(home(experiment, at_best))
    Console().print(_table(made, config))
    show(options.out, with_report=options.report)
    return Comparison(code, options.out, found, made, evaluate(made))


def _table(made: Rows, config: CompareConfig) -> Table:
    shown = Table(title=f"Results: the {config.goal} is the best", box=SIMPLE, padding=(0, 1))
    for heading in HEAD:
        shown.add_column(heading, justify="left" if heading == "arm" else "right")
    for line in lines(made):
        shown.add_row(*line)
    return shown
