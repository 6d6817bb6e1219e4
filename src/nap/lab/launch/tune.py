"""`nap tune`: a grid search for the learning rate of each arm, on seeds that no result uses.

Each rate is a sweep in a folder of its own. While the best rate of an arm is at an end of the grid, the grid
is extended there for that arm. Finished runs are not repeated. Runs are ordered by seed, then from the middle
of the grid outwards, so that an interrupted search has compared all arms at the middle rates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nap.lab import rows
from nap.lab.experiments.experiment import Experiment, Tuning
from nap.lab.experiments.tasks import experiment_folder, first_seed
from nap.lab.experiments.tuned import FILE_NAME, Sensitivity, Tuned, comparable, label
from nap.lab.files import write_json
from nap.lab.launch.command import driven, exit_code
from nap.lab.launch.jobs import Job, jobs
from nap.lab.launch.options import TuneOptions
from nap.lab.launch.run_state import read_state
from nap.lab.options import Request, grouped
from nap.lab.runner.run import STOPPED
from nap.lab.seeds import FIRST_TUNING_SEED

Drive = Callable[[str, Sequence[Job], TuneOptions], int]  # (title, jobs, options) → exit code


def tune(experiment: Experiment, request: Request, settings: Sequence[str]) -> int:
    """Search, write the best rates to a file and print them; returns the exit code."""
    options, tuning = request.options, experiment.tuning
    assert isinstance(options, TuneOptions)
    options.check()
    if tuning is None:
        raise ValueError(
            f"{experiment.name}: learning rates are part of what it tests; there is nothing to tune"
        )
    for key, *_ in grouped(settings):
        if key in ("--learning-rate", "--seeds", "--first-seed", "--tuned"):
            raise ValueError(f"{key}: nap tune sets it; leave it out (--rates, --tuning-seeds)")
    search = Search(experiment, request, settings, tuning)
    if options.conclude:
        return _conclude(search.results(), search.folder, options)
    if options.dry_run:
        todo = search.jobs(dict.fromkeys(search.groups, search.grid))
        print("\n".join(f"{job.label}: {read_state(job.path).state}" for job in todo))
        return 0
    code, tuned = search_rates(search, options, on_engine)
    if code == STOPPED:
        if any(group.results for group in tuned.groups.values()):
            Console().print(table(tuned))
            print("To decide on these: the same command with --conclude")
        return STOPPED
    return _conclude(tuned, search.folder, options)


def on_engine(title: str, todo: Sequence[Job], options: TuneOptions) -> int:
    """Drive the jobs on the engine of the options; returns the exit code."""
    return exit_code(driven(title, todo, options))


def search_rates(search: Search, options: TuneOptions, drive: Drive) -> tuple[int, Tuned]:
    """Exit code and results over the grid, extended where a best rate is at its end."""
    tuning, grid = search.tuning, search.grid
    factor = grid[1] / grid[0]
    ends_at = math.inf if options.time_limit is None else time.monotonic() + options.time_limit
    wanted: dict[str, list[float]] = dict.fromkeys(search.groups, grid)
    for step in range(options.extend + 1):
        left = None if options.time_limit is None else max(ends_at - time.monotonic(), 1e-3)
        code = drive(
            f"tuning {search.experiment.name}", search.jobs(wanted), replace(options, time_limit=left)
        )
        tuned = search.results()
        write_json(search.folder / FILE_NAME, tuned.to_json() | {"finished": False})
        if code == STOPPED or not all(group.results for group in tuned.groups.values()):
            return code, tuned
        wanted = {
            name: [rate]
            for name, group in tuned.groups.items()
            if step < options.extend and (rate := group.beyond(tuning, factor)) is not None
        }
        if not wanted:
            break
        more = "; ".join(f"{name} {rate:g}" for name, (rate,) in wanted.items())
        print(f"Best at an end of the grid, so more rates: {more}")
    return code, tuned


class Search:
    """The runs of one search, and their results."""

    def __init__(self, experiment: Experiment, request: Request, settings: Sequence[str], tuning: Tuning):
        self.experiment, self.tuning, self.options = experiment, tuning, request.options
        self.seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + request.options.tuning_seeds)  # type: ignore[attr-defined]
        changes = {"first_seed": self.seeds[0], "seeds": len(self.seeds), **tuning.changes}
        self.config = replace(request.config, **changes)
        self._request = request
        self._words = [*settings, *_words(changes)]
        deciding = [run for run in experiment.runs(self.config) if run.decides]
        self.configs = {run.tuned_as: comparable(run, tuning) for run in deciding}
        self.labels = {run.tuned_as: label(run) for run in deciding}
        if not deciding:
            raise ValueError(f"{experiment.name}: none of the runs asked for decides a learning rate")

    @property
    def grid(self) -> list[float]:
        """The rates to start from, from low to high."""
        return sorted(set(self.options.rates or self.tuning.rates))  # type: ignore[attr-defined]

    @property
    def groups(self) -> list[str]:
        return list(self.configs)

    @property
    def folder(self) -> Path:
        plain = experiment_folder(self.experiment, self._request.options)
        return plain.with_name(f"{plain.name}-tuning")

    def jobs(self, wanted: Mapping[str, Sequence[float]]) -> list[Job]:
        """A job for each run of these groups at these rates, seed by seed, middle rates first."""
        rates = sorted({rate for rates in wanted.values() for rate in rates})
        middle = rates[len(rates) // 2]
        rates.sort(key=lambda rate: abs(math.log(rate / middle)))
        todo = [
            replace(job, label=f"{job.label} at {rate:g}")
            for rate in rates
            for job in self._at(rate)
            if job.run.decides and rate in wanted.get(job.run.tuned_as, ())
        ]
        return sorted(todo, key=lambda job: first_seed(job.run))

    def results(self) -> Tuned:
        """Results of the finished runs of each group, on the seeds that all its rates have."""
        scores: dict[str, dict[float, dict[int, float | None]]] = {name: {} for name in self.configs}
        for folder in self.folder.glob("lr-*"):
            if (rate := _rate_of(folder)) is None:
                continue
            for job in self._at(rate):
                state = read_state(job.path)
                if job.run.decides and state.state in ("finished", "failed"):
                    path = job.path / rows.FILE_NAME
                    written = list(rows.read(path)) if state.state == "finished" else []
                    scores[job.run.tuned_as].setdefault(rate, {}).update(self._scores(written, job))
        groups = {
            name: Sensitivity(on_shared_seeds(of, self.seeds), self.configs[name])
            for name, of in scores.items()
        }
        about = self.experiment.name, self.options.scale
        return Tuned(*about, self.tuning, list(self.seeds), groups, self.labels)

    def _at(self, rate: float) -> list[Job]:
        options = replace(self.options, out=self.folder / f"lr-{rate:g}")
        request = replace(self._request, options=options, config=replace(self.config, learning_rate=rate))
        return jobs([(self.experiment, request)], [*self._words, "--learning-rate", f"{rate:g}"])

    def _scores(self, written: Sequence[rows.Row], job: Job) -> dict[int, float | None]:
        """The metric of each seed of a run; None if it diverged."""
        metric, seeds = self.tuning.metric, getattr(job.run.config, "seeds", None) or self.seeds
        values: dict[int, list[float]] = {seed: [] for seed in seeds}
        for row in written:
            if row.get("kind") is None and metric in row:
                values[row["seed"]].append(math.nan if row[metric] is None else row[metric])
        means = {
            seed: (fmean(of) if self.tuning.over == "all" else of[-1]) if of else math.nan
            for seed, of in values.items()
        }
        return {seed: mean if math.isfinite(mean) else None for seed, mean in means.items()}


def on_shared_seeds(
    results: Mapping[float, Mapping[int, float | None]], seeds: Sequence[int]
) -> dict[float, tuple[float | None, ...]]:
    """Results by rate, on the seeds that every rate has.

    >>> on_shared_seeds({1e-3: {100: 0.5, 101: 0.7}, 2e-3: {100: 0.6}}, seeds=[100, 101, 102])
    {0.001: (0.5,), 0.002: (0.6,)}
    """
    shared = [seed for seed in seeds if all(seed in of for of in results.values())]
    return {rate: tuple(of[seed] for seed in shared) for rate, of in results.items() if shared}


def _rate_of(folder: Path) -> float | None:
    """The learning rate in the name of a folder; None if it is no folder of a search."""
    try:
        rate = float(folder.name.removeprefix("lr-"))
    except ValueError:
        return None
    return rate if 0 < rate < math.inf and folder.name == f"lr-{rate:g}" else None


def _words(changes: Mapping[str, Any]) -> list[str]:
    return [word for key, value in changes.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def _conclude(tuned: Tuned, folder: Path, options: TuneOptions) -> int:
    """Print and write the best rates; 1 if an arm has none, or if one is at an end of the grid."""
    if not save_rates(tuned, folder):
        return 1
    print(
        f"\nRates: {folder / FILE_NAME}\nResults at these rates: nap run {tuned.experiment} "
        f"--scale {tuned.scale} --tuned {folder / FILE_NAME}\nThe plot: nap report {folder}"
    )
    fewest = min(len(values) for group in tuned.groups.values() for values in group.results.values())
    if fewest < len(tuned.seeds):
        print(f"Some arms are decided on {fewest} of {len(tuned.seeds)} seeds: the search was cut off")
    return int(is_at_an_end(tuned, options))


def save_rates(tuned: Tuned, folder: Path) -> bool:
    """Print the table; write the file and return True if every arm has a rate."""
    Console().print(table(tuned))
    unmeasured = [name for name, group in tuned.groups.items() if not group.results]
    if unmeasured:
        print(f"No finished runs of {', '.join(unmeasured)}: give the same command without --conclude")
        return False
    diverged = [name for name, group in tuned.groups.items() if group.best(tuned.tuning) is None]
    if diverged:
        print(f"No rate worked for {', '.join(diverged)}: the search is not finished; try smaller --rates")
        return False
    write_json(folder / FILE_NAME, tuned.to_json())
    return True


def is_at_an_end(tuned: Tuned, options: TuneOptions) -> bool:
    """Whether an arm's best rate is the lowest or highest one; prints which."""
    edges = [name for name, group in tuned.groups.items() if group.beyond(tuned.tuning, 2.0) is not None]
    if edges:
        print(
            f"The best rate is at an end of the grid for {', '.join(edges)}; raise --extend {options.extend}"
        )
    return bool(edges)


def table(tuned: Tuned) -> Table:
    """Results of each arm by learning rate; the best is bold."""
    rates = sorted({rate for group in tuned.groups.values() for rate in group.results})
    title = f"{tuned.experiment}: {tuned.tuning.metric.replace('_', ' ')} by learning rate, mean of seeds "
    shown = Table(title=escape(f"{title}{tuned.seeds[0]} to {tuned.seeds[-1]}"), box=SIMPLE, padding=(0, 1))
    shown.add_column("arm", overflow="fold")
    for rate in rates:
        shown.add_column(short(rate), justify="right", no_wrap=True)
    for name, group in tuned.groups.items():
        best = group.best(tuned.tuning)
        cells = []
        for rate in rates:
            mean = group.mean(rate) if rate in group.results else None
            text = "" if rate not in group.results else "diverged" if mean is None else f"{mean:.3g}"
            cells.append(f"[bold]{text}[/bold]" if rate == best else text)
        shown.add_row(escape(tuned.labels.get(name, name)), *cells)
    return shown


def short(rate: float) -> str:
    """A learning rate in short notation.

    >>> short(0.0002), short(0.00125), short(1.0)
    ('2e-4', '1.25e-3', '1e0')
    """
    mantissa, exponent = f"{rate:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
