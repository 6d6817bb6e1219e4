"""The runs that were asked for, each with its folder, open and locked."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nap.lab import aliases
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.options import How, Request
from nap.lab.runner.folder import RunFolder, has_results

MOST_PARTS = 1_000_000
BOARD = "tensorboard"  # in a run's folder
SEEDS = re.compile(r"(?P<arm>.*)-seeds?-(?P<first>\d+)(-(?P<last>\d+))?")  # names of `seeded_runs`


@dataclass(frozen=True)
class Task:
    """A run with its folder, which this process holds."""

    number: int  # among those that were asked for, from 0
    label: str
    run: Run
    folder: RunFolder


def home(experiment: Experiment, how: How) -> Path:
    """The folder of an experiment's runs at one scale."""
    return how.out / f"{experiment.folder}-{how.scale}{'-tuned' * (how.tuned is not None)}"


def share(part: str, runs: int) -> slice:
    """Which of so many runs `--part` asks for: one of them is in just one part.

    >>> [list(range(7))[share(f"{k}/3", 7)] for k in (1, 2, 3)]
    [[0, 3, 6], [1, 4], [2, 5]]
    """
    numbers = re.fullmatch(r"(\d+)/(\d+)", part)
    which, of = map(int, numbers.groups()) if numbers else (0, 0)
    if not 1 <= which <= of <= MOST_PARTS:
        raise ValueError(f"--part {part}: expected two numbers like 2/4, the second of four parts")
    if which > runs:
        raise ValueError(f"--part {part}: there are {runs} runs, so this part has none; take fewer parts")
    return slice(which - 1, None, of)


def chosen(requests: Sequence[tuple[Experiment, Request]]) -> list[tuple[Path, Experiment, Run]]:
    """Every run of this part, and its folder's path; experiments that measure the same runs share them.

    Seed by seed, so that what is cut off has all arms on a few seeds and not a few arms on all.
    """
    asked: dict[Path, tuple[Experiment, Run]] = {}
    for experiment, request in requests:
        for run in experiment.runs(request.config):
            path = folder_of(run, home(experiment, request.how))
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
    return found[share(requests[0][1].how.part, len(asked))]


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
                "change --together or --seeds to what they were, or give this its own --out"
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
                f"without torchrun, give each process its share of the runs: nap run --part 1/{processes}, "
                f"--part 2/{processes} and so on"
            )
    return None


def open_tasks(requests: Sequence[tuple[Experiment, Request]], held: contextlib.ExitStack) -> list[Task]:
    """Every chosen run with its folder, for as long as `held`."""
    how, alone = requests[0][1].how, len(requests) == 1
    return [_opened(number, *each, how, alone, held) for number, each in enumerate(chosen(requests))]


def _opened(
    number: int,
    path: Path,
    experiment: Experiment,
    run: Run,
    how: How,
    alone: bool,
    held: contextlib.ExitStack,
) -> Task:
    folder = RunFolder.open(
        path,
        experiment=experiment.folder,
        scale=how.scale,
        run=run.name,
        config=run.config,
        start_over=how.force,
    )
    held.enter_context(folder)
    if how.force:
        shutil.rmtree(path / BOARD, ignore_errors=True)
    return Task(number, run.name if alone else f"{experiment.name} {run.name}", run, folder)
