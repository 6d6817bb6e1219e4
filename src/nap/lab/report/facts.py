"""The runs at or below a folder: config, manifest, rows, what is wrong with them; and all that as HTML."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from nap.lab import aliases, files, stored
from nap.lab import rows as rows_of
from nap.lab.claims.folders import status_of
from nap.lab.claims.samples import UNFINISHED
from nap.lab.report.markup import Html, element, join, pairs, table
from nap.lab.report.style import duration
from nap.lab.rows import Rows
from nap.lab.seeds import for_tuning
from nap.lab.stored import UNVERIFIED


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
    folder: Path = Path()

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
    unfinished = status_of(run)
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
        folder=home,
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


def problems_html(group: Group) -> Html | None:
    """Each run that did not finish or cannot be read, by name, with the reason."""
    bad = [
        element("li", element("b", run.name), f": {'; '.join(run.problems)}")
        for run in group.runs
        if run.problems
    ]
    if not bad:
        return None
    head = f"{len(bad)} of {len(group.runs)} runs {'is' if len(bad) == 1 else 'are'} not complete:"
    return element("div", head, element("ul", *bad), class_="problem")


def run_again(group: Group) -> list[str]:
    """The commands that made the runs as far as the manifests have them, else the one for their scale."""
    noted = [run.manifest.get("command") for run in group.runs]
    words = [shlex.join(map(str, c)) if isinstance(c, list) else str(c) for c in noted if c]
    commands = list(dict.fromkeys(words))
    scale = f" --scale {group.scale}" if group.scale else ""
    return commands or [f"nap run {group.experiment}{scale}"]


def facts_html(group: Group) -> Html:
    """Two boxes to open: settings; versions and machines."""
    shared, by_run = settings(group.runs)
    return join(
        element(
            "details",
            element("summary", "Settings"),
            element("h4", "Shared by all runs") if by_run else None,
            pairs(shared) if shared else element("p", "No config.json could be read.", class_="quiet"),
            element("h4", "Different from run to run") if by_run else None,
            _by_run(by_run) if by_run else None,
        ),
        element("details", element("summary", "Versions, machine and time"), _machine(group)),
    )


def _by_run(by_run: dict[str, dict[str, str]]) -> Html:
    keys = list(next(iter(by_run.values())))
    body = [[name, *values.values()] for name, values in by_run.items()]
    return table(["run", *keys], body, label="settings by run", class_="wide")


def _machine(group: Group) -> Html:
    known = manifest_facts(group.runs)
    runs = [
        [
            run.name,
            "; ".join([*(run.problems or (_finished(run),)), *run.notes]),
            duration(run.seconds) if run.seconds else "–",
            str(len(run.sittings) or "–"),
            f"{len(run.rows):,}",
        ]
        for run in group.runs
    ]
    return join(
        pairs(known) if known else None,
        table(["run", "state", "work", "sittings", "rows"], runs, label="runs", class_="wide"),
    )


def _finished(run: RunFacts) -> str:
    return "finished" if run.verified else f"finished, {UNVERIFIED}"


def settings(runs: tuple[RunFacts, ...]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Settings that all runs share, and by run those in which they differ."""
    known = [run for run in runs if run.config]
    configs = {run.name: {k: words(v) for k, v in flat(run.config).items()} for run in known}
    keys = list(dict.fromkeys(key for config in configs.values() for key in config))
    shared, different = {}, []
    for key in keys:
        first, *others = [config.get(key, "–") for config in configs.values()]
        if all(other == first for other in others):
            shared[key] = first
        else:
            different.append(key)
    by_run = {name: {key: config.get(key, "–") for key in different} for name, config in configs.items()}
    return shared, by_run if different else {}


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings without their nesting; the tags of its rows, which repeat some of them, left out.

    >>> flat({"arm": {"norm": "layer"}, "settings": {"norm": 1, "lr": 0.1}, "tags": {"nap": True}})
    {'norm': 'layer', 'settings.norm': 1, 'lr': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        inside = value if isinstance(value, dict) else {key: value}
        for name, setting in inside.items() if key != "tags" else ():
            found[name if name not in found else f"{key}.{name}"] = setting
    return found


def manifest_facts(runs: tuple[RunFacts, ...]) -> dict[str, str]:
    """What the manifests say, each different value once: versions, commit, device, times."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for key, value in _flat(run.manifest).items():
            text = words(value)
            if text not in found.setdefault(key, []):
                found[key].append(text)
    return {key: "; ".join(values) if len(values) < 5 else _many(values) for key, values in found.items()}


def words(value: Any) -> str:
    """A setting as people write it.

    >>> words([3, 0.5]), words(True), words(None), words(1e-4)
    ('3, 0.5', 'yes', 'none', '0.0001')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(words(item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {words(item)}" for key, item in value.items())
    return str(value)


def _many(values: list[str]) -> str:
    return f"{values[0]}; {values[1]}; … ({len(values)} different)"


def _flat(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader wants to know of where numbers come from; no names of hosts."""
    versions = manifest.get("versions")
    plain = dict(versions) if isinstance(versions, dict) else {}
    commit = manifest.get("commit")
    if commit:
        plain["commit"] = f"{commit}, with changes" if manifest.get("dirty") else commit
    plain |= {key: manifest[key] for key in ("device", "threads", "platform") if key in manifest}
    return plain
