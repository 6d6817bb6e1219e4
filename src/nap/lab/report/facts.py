"""The runs at or below a folder as found: config, manifest, rows, and what is wrong with them, in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from nap.lab import aliases, files, stored
from nap.lab import rows as rows_of
from nap.lab.claims.folders import mark
from nap.lab.claims.samples import UNFINISHED
from nap.lab.rows import Rows
from nap.lab.seeds import for_tuning


@dataclass(frozen=True)
class RunFacts:
    """A run's folder as found. `problems` says in words what could not be read or did not finish."""

    name: str
    experiment: str
    scale: str
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    rows: Rows
    problems: tuple[str, ...]
    unfinished: str  # how it stands, in words; empty where it is finished
    verified: bool = False  # its rows have the checksum that its manifest notes

    @property
    def seconds(self) -> float:
        """Seconds of work."""
        return float(self.manifest.get("seconds") or 0.0)

    @property
    def sittings(self) -> list[Mapping[str, Any]]:
        """One entry for each start of the run."""
        return list(self.manifest.get("sittings") or ())

    @property
    def notes(self) -> list[str]:
        """What the run had to remark, a damaged checkpoint for example."""
        return [str(note) for sitting in self.sittings for note in sitting.get("notes") or ()]


@dataclass(frozen=True)
class Group:
    """The runs of one experiment at one scale, in one folder."""

    folder: str
    experiment: str
    scale: str
    runs: tuple[RunFacts, ...]

    @cached_property
    def rows(self) -> Rows:
        """All their rows; those of a run that has more to come are marked, as the claims want it."""
        marks = {run.name: {UNFINISHED: run.unfinished} if run.unfinished else {} for run in self.runs}
        return Rows({"run": run.name} | row | marks[run.name] for run in self.runs for row in run.rows)


def find_groups(directory: Path, *, without_tuning: bool = False) -> list[Group]:
    """The runs at or below a folder, by the folder they lie in, their experiment and scale.

    `without_tuning` leaves out those whose rows are all of tuning seeds: they have a plot of their own.
    """
    homes = sorted(
        {
            path.parent
            for name in (stored.CONFIG, stored.MANIFEST, rows_of.FILE_NAME)
            for path in directory.rglob(name)
        }
    )
    if not homes:
        raise ValueError(
            f"no run at {directory} or below it; write some with `nap run fig1`, then `nap report results`"
        )
    found: dict[tuple[str, str, str], list[RunFacts]] = {}
    for home in homes:
        run = read_run(home)
        folder = directory if home == directory else home.parent
        name = directory.name if folder == directory else str(folder.relative_to(directory))
        found.setdefault((name, run.experiment, run.scale), []).append(run)
    groups = [Group(*key, tuple(runs)) for key, runs in found.items()]
    if not without_tuning:
        return groups
    return [
        group
        for group in groups
        if not (seeds := group.rows.unique("seed")) or not all(map(for_tuning, seeds))
    ]


def read_run(home: Path) -> RunFacts:
    """The facts of one run's folder; whatever is torn, missing or unfinished becomes a problem in words."""
    problems: list[str] = []
    about = _read_json(home / stored.CONFIG, problems)
    run = stored.stored_run(home)
    manifest, rows = run.manifest, Rows(map(_numbers_only, run.rows))
    problems += [problem.replace(str(home), home.name) for problem in run.damage]
    if not manifest and not run.damage:
        problems.append(f"{stored.MANIFEST} is missing")
    if about and manifest.get("config", stored.config_hash(about)) != stored.config_hash(about):
        problems.append(f"{stored.CONFIG} is not that of its rows: it was edited")
    if not len(rows):
        problems.append("it has no rows")
    unfinished = mark(run)
    if manifest and unfinished and not run.damage:
        problems.append(f"it did not finish ({manifest.get('exit') or 'still at work, or killed'})")
    experiment = str((rows[0].get("experiment") if len(rows) else "") or about.get("experiment") or "unknown")
    config = aliases.config(about.get("config"), experiment=experiment)
    return RunFacts(
        name=str(about.get("run") or home.name),
        experiment=experiment,
        scale=str(about.get("scale") or ""),
        config=config if isinstance(config, dict) else {},
        manifest=manifest,
        rows=rows,
        problems=tuple(problems),
        unfinished=unfinished,
        verified=run.verified,
    )


def _numbers_only(row: rows_of.Row) -> rows_of.Row:
    """The row with null for NaN and infinity: `nap run` writes it so, other programs may not."""
    return {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in row.items()}


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(files.content(path))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return {}
    except (OSError, RecursionError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({error})")
        return {}
    if not isinstance(found, dict):
        problems.append(f"{path.name} holds no JSON object")
        return {}
    return found
