"""The runs of a `nap run` command with their folders, open and locked; and the results they print."""

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
    """A run with its folder, which this process has locked."""

    number: int  # among the selected runs, from 0
    label: str
    run: Run
    folder: RunFolder


def experiment_folder(experiment: Experiment, options: RunOptions) -> Path:
    """The folder of an experiment's runs at one scale."""
    scale = f"-{options.scale}" if experiment.named_by_scale else ""
    return options.out / f"{experiment.folder}{scale}{'-tuned' * (options.tuned is not None)}"


def shard_slice(shard: str, runs: int) -> slice:
    """The runs of `--shard` among so many: each run is in exactly one shard.

    >>> [list(range(7))[shard_slice(f"{k}/3", 7)] for k in (1, 2, 3)]
    [[0, 3, 6], [1, 4], [2, 5]]
    """
    numbers = re.fullmatch(r"(\d+)/(\d+)", shard)
    index, shards = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= index <= shards <= MAX_SHARDS:
        raise ValueError(f"--shard {shard}: expected two numbers like 2/4, the second of four shards")
    if index > runs:
        raise ValueError(f"--shard {shard}: there are {runs} runs, so this shard has none; take fewer shards")
    return slice(index - 1, None, shards)


def select_runs(requests: Sequence[tuple[Experiment, Request]]) -> list[tuple[Path, Experiment, Run]]:
    """Every run of this shard with the path of its folder; experiments with the same runs share them.

    Ordered by seed, so that an interrupted command has all arms on a few seeds, not a few arms on all seeds.
    """
    by_path: dict[Path, tuple[Experiment, Run]] = {}
    for experiment, request in requests:
        for run in experiment.runs(request.config):
            path = run_folder(run, experiment_folder(experiment, request.options))
            if path in by_path and by_path[path][1].config != run.config:
                raise ValueError(
                    f"{by_path[path][0].name} and {experiment.name} share the runs of {path.parent}, and ask "
                    f"for {run.name} with other settings; run one of them, or give each its own --out"
                )
            by_path.setdefault(path, (experiment, run))
    if not by_path:
        names = ", ".join(experiment.name for experiment, _ in requests)
        raise ValueError(f"{names}: these settings ask for no run; name an arm, a method or a game")
    for path, (_, run) in by_path.items():
        _check_seeds(path, run)
    runs = sorted(((path, *pair) for path, pair in by_path.items()), key=lambda each: first_seed(each[2]))
    return runs[shard_slice(requests[0][1].options.shard, len(by_path))]


def first_seed(run: Run) -> int:
    """The first seed of a run that has seeds of its own; 0 for a run of all seeds."""
    return getattr(run.config, "seed", 0)


def run_folder(run: Run, folder: Path) -> Path:
    """The folder of a run: the one named after its arm's former name, if that exists."""
    names = [run.name, *aliases.run_names(run.name)]
    return next((folder / name for name in names if (folder / name).is_dir()), folder / run.name)


def _check_seeds(path: Path, run: Run) -> None:
    """Refuse seeds that another run of this arm has in a folder beside it: rows would be there twice."""
    if (name := SEEDS.fullmatch(path.name)) is None or not path.parent.is_dir():
        return
    for other in sorted(path.parent.iterdir()):
        other_name = SEEDS.fullmatch(other.name)
        if other_name is None or other == path or other_name["arm"] != name["arm"] or not has_results(other):
            continue
        if both := sorted(_seeds(name) & _seeds(other_name)):
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


def distribution_error(runs: Sequence[tuple[Path, Experiment, Run]], processes: int) -> str | None:
    """Why so many processes cannot share these runs; None if they can."""
    for _, experiment, run in runs:
        if processes > 1 and not run.distributed:
            return (
                f"{experiment.name}: each of its runs is for one process, and torchrun started {processes}; "
                f"without torchrun, give each process its share of the runs: nap run --shard 1/{processes}, "
                f"--shard 2/{processes} and so on"
            )
    return None


def open_tasks(requests: Sequence[tuple[Experiment, Request]], stack: contextlib.ExitStack) -> list[Task]:
    """Every selected run with its folder, open until `stack` closes."""
    options = requests[0][1].options
    tasks = []
    for number, (path, experiment, run) in enumerate(select_runs(requests)):
        folder = stack.enter_context(
            RunFolder.open(
                path,
                experiment=experiment.folder,
                scale=options.scale,
                run=run.name,
                config=run.config,
                start_over=options.force,
            )
        )
        if options.force:
            shutil.rmtree(path / BOARD, ignore_errors=True)
        label = run.name if len(requests) == 1 else f"{experiment.name} {run.name}"
        tasks.append(Task(number, label, run, folder))
    return tasks


def print_results(folder: Path, *, with_report: bool) -> None:
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


def resume_command(options: RunOptions) -> str:
    """What resumes the runs, in words; with --force the same command would discard them.

    >>> resume_command(RunOptions(force=True))
    'the same command without --force'
    """
    return "the same command" + " without --force" * options.force
