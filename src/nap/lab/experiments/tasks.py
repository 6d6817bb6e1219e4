"""The runs that were asked for, each with its folder, open and locked; and what they show at the end."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nap.lab import aliases, claims, report, rows
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.options import Request, RunOptions
from nap.lab.runner.folder import RunFolder, has_results

MAX_SHARDS = 1_000_000
BOARD = "tensorboard"  # in a run's folder
SEEDS = re.compile(r"(?P<arm>.*)-seeds?-(?P<first>\d+)(-(?P<last>\d+))?")  # names of `seeded_runs`


@dataclass(frozen=True)
class Task:
    """A run with its folder, which this process holds."""

    number: int  # among those that were asked for, from 0
    label: str
    run: Run
    folder: RunFolder


def home(experiment: Experiment, options: RunOptions) -> Path:
    """The folder of an experiment's runs at one scale."""
    scale = f"-{options.scale}" if experiment.named_by_scale else ""
    return options.out / f"{experiment.folder}{scale}{'-tuned' * (options.tuned is not None)}"


def shard_slice(shard: str, runs: int) -> slice:
    """Which of so many runs `--shard` asks for: each run is in exactly one shard.

    >>> [list(range(7))[shard_slice(f"{k}/3", 7)] for k in (1, 2, 3)]
    [[0, 3, 6], [1, 4], [2, 5]]
    """
    numbers = re.fullmatch(r"(\d+)/(\d+)", shard)
    which, of = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= which <= of <= MAX_SHARDS:
        raise ValueError(f"--shard {shard}: expected two numbers like 2/4, the second of four shards")
    if which > runs:
        raise ValueError(f"--shard {shard}: there are {runs} runs, so this shard has none; take fewer shards")
    return slice(which - 1, None, of)


def chosen(requests: Sequence[tuple[Experiment, Request]]) -> list[tuple[Path, Experiment, Run]]:
    """Every run of this shard, and its folder's path; experiments that measure the same runs share them.

    Ordered by seed, so that what is cut off has all arms on a few seeds and not a few arms on all.
    """
    asked: dict[Path, tuple[Experiment, Run]] = {}
    for experiment, request in requests:
        for run in experiment.runs(request.config):
            path = folder_of(run, home(experiment, request.options))
            if path in asked and asked[path][1].config != run.config:
                raise ValueError(
                    f"{asked[path][0].name} and {experiment.name} share the runs of {path.parent}, and ask "
                    f"for {run.name} with other settings; run one of them, or give each its own --out"
                )
            asked.setdefault(path, (experiment, run))
    if not asked:
        names = ", ".join(experiment.name for experiment, _ in requests)
        raise ValueError(f"{names}: these settings ask for no run; name an arm, a method or a game")
    for path, (_, run) in asked.items():
        _check_seeds(path, run)
    found = sorted(((path, *each) for path, each in asked.items()), key=lambda each: first_seed(each[2]))
    return found[shard_slice(requests[0][1].options.shard, len(asked))]


def first_seed(run: Run) -> int:
    """The first seed of a run that has seeds of its own; 0 for a run of all seeds."""
    return getattr(run.config, "seed", 0)


def folder_of(run: Run, home: Path) -> Path:
    """Where a run lies: under the name that its arm had earlier, if that folder is there."""
    names = [run.name, *aliases.run_names(run.name)]
    return next((home / name for name in names if (home / name).is_dir()), home / run.name)


def _check_seeds(path: Path, run: Run) -> None:
    """Refuse seeds that another run of this arm has in a folder beside it: rows would be there twice."""
    if (numbered := SEEDS.fullmatch(path.name)) is None or not path.parent.is_dir():
        return
    for other in sorted(path.parent.iterdir()):
        found = SEEDS.fullmatch(other.name)
        if found is None or other == path or found["arm"] != numbered["arm"] or not has_results(other):
            continue
        if both := sorted(_seeds(numbered) & _seeds(found)):
            raise ValueError(
                f"seed {both[0]} is in {other} already, and {run.name} would have it again; "
                "change --seeds-per-run or --seeds to what they were, or give this its own --out"
            )


def _seeds(name: re.Match[str]) -> set[int]:
    """
    >>> _seeds(SEEDS.fullmatch("norm-only-seed-4")), _seeds(SEEDS.fullmatch("nap-seeds-0-2"))
    ({4}, {0, 1, 2})
    """
    return set(range(int(name["first"]), int(name["last"] or name["first"]) + 1))


def not_distributed(runs: Sequence[tuple[Path, Experiment, Run]], processes: int) -> str | None:
    """Why so many processes cannot share these runs; None where they can."""
    for _, experiment, run in runs:
        if processes > 1 and not run.distributed:
            return (
                f"{experiment.name}: each of its runs is for one process, and torchrun started {processes}; "
                f"without torchrun, give each process its share of the runs: nap run --shard 1/{processes}, "
                f"--shard 2/{processes} and so on"
            )
    return None


def open_tasks(requests: Sequence[tuple[Experiment, Request]], held: contextlib.ExitStack) -> list[Task]:
    """Every chosen run with its folder, for as long as `held`."""
    options, alone = requests[0][1].options, len(requests) == 1
    return [_opened(number, *each, options, alone, held) for number, each in enumerate(chosen(requests))]


def _opened(
    number: int,
    path: Path,
    experiment: Experiment,
    run: Run,
    options: RunOptions,
    alone: bool,
    held: contextlib.ExitStack,
) -> Task:
    folder = RunFolder.open(
        path,
        experiment=experiment.folder,
        scale=options.scale,
        run=run.name,
        config=run.config,
        start_over=options.force,
    )
    held.enter_context(folder)
    if options.force:
        shutil.rmtree(path / BOARD, ignore_errors=True)
    return Task(number, run.name if alone else f"{experiment.name} {run.name}", run, folder)


def show(folder: Path, *, with_report: bool) -> None:
    """Print the verdicts on the runs of a folder, and where the figures are."""
    if not any(file.stat().st_size for file in folder.rglob(rows.FILE_NAME)):
        print(f"\nNo results: no run in {folder} has got far enough")
        return
    print()
    try:
        claims.command(folder, False)
    except ValueError as error:  # the runs are done all the same
        print(f"No verdicts: {error}")
    pointer = f"Report: {report.command(folder)}" if with_report else f"Figures: nap report {folder}"
    print(f"\nResults: {folder}\n{pointer}")


def same_command(options: RunOptions) -> str:
    """What goes on with the runs: with --force it would discard them.

    >>> same_command(RunOptions(force=True))
    'the same command without --force'
    """
    return "the same command" + " without --force" * options.force
