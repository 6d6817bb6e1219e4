"""The runs at or below a folder: config, manifest, rows and problems; and these as HTML."""

from __future__ import annotations

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
    """What a run's folder holds."""

    name: str
    experiment: str
    scale: str
    config: Mapping[str, Any]
    manifest: Mapping[str, Any]
    rows: Rows
    problems: tuple[str, ...]  # what could not be read or did not finish
    unfinished: str  # why it decides no claim; empty for a finished run
    verified: bool = False  # its rows have the checksum in its manifest
    folder: Path = Path()

    @property
    def seconds(self) -> float:
        """Seconds of work."""
        return float(self.manifest.get("seconds") or 0.0)

    @property
    def sessions(self) -> list[Mapping[str, Any]]:
        """One entry for each start of the run."""
        return list(self.manifest.get("sessions") or ())

    @property
    def notes(self) -> list[str]:
        """The notes in its manifest, about a damaged checkpoint for example."""
        return [str(note) for session in self.sessions for note in session.get("notes") or ()]


@dataclass(frozen=True)
class Group:
    """The runs of one experiment at one scale, in one folder."""

    folder: str
    experiment: str
    scale: str
    runs: tuple[RunFacts, ...]

    @cached_property
    def rows(self) -> Rows:
        """All their rows; those of unfinished runs are marked, so that they decide no claim."""
        marks = {run.name: {UNFINISHED: run.unfinished} if run.unfinished else {} for run in self.runs}
        return Rows({"run": run.name} | row | marks[run.name] for run in self.runs for row in run.rows)


def find_groups(directory: Path, *, without_tuning: bool = False) -> list[Group]:
    """The runs at or below a folder, grouped by the folder that holds them, experiment and scale.

    `without_tuning` leaves out groups whose rows are all of tuning seeds: they have a plot of their own.
    """
    run_folders = sorted(
        {
            path.parent
            for name in (stored.CONFIG, stored.MANIFEST, rows_of.FILE_NAME)
            for path in directory.rglob(name)
        }
    )
    if not run_folders:
        raise ValueError(
            f"no run at {directory} or below it; write some with `nap run fig1`, then `nap report results`"
        )
    runs: dict[tuple[str, str, str], list[RunFacts]] = {}
    for run_folder in run_folders:
        run = read_run(run_folder)
        folder = directory if run_folder == directory else run_folder.parent
        name = directory.name if folder == directory else str(folder.relative_to(directory))
        runs.setdefault((name, run.experiment, run.scale), []).append(run)
    groups = [Group(*key, tuple(members)) for key, members in runs.items()]
    if not without_tuning:
        return groups
    return [
        group
        for group in groups
        if not (seeds := group.rows.unique("seed")) or not all(map(for_tuning, seeds))
    ]


def read_run(folder: Path) -> RunFacts:
    """The contents of one run's folder; what is damaged, missing or unfinished becomes a problem in words."""
    problems: list[str] = []
    about = _read_json(folder / stored.CONFIG, problems)
    run = stored.stored_run(folder)
    manifest, rows = run.manifest, Rows(map(_numbers_only, run.rows))
    problems += [problem.replace(str(folder), folder.name) for problem in run.damage]
    if not manifest and not run.damage:
        problems.append(f"{stored.MANIFEST} is missing")
    if about and manifest.get("config", stored.config_hash(about)) != stored.config_hash(about):
        problems.append(f"{stored.CONFIG} was edited: it is not the one that its rows were made with")
    if not len(rows):
        problems.append("it has no rows")
    unfinished = status_of(run)
    if manifest and unfinished and not run.damage:
        problems.append(f"it did not finish ({manifest.get('exit') or 'still at work, or killed'})")
    experiment = str((rows[0].get("experiment") if len(rows) else "") or about.get("experiment") or "unknown")
    config = aliases.config(about.get("config"), experiment=experiment)
    return RunFacts(
        name=str(about.get("run") or folder.name),
        experiment=experiment,
        scale=str(about.get("scale") or ""),
        config=config if isinstance(config, dict) else {},
        manifest=manifest,
        rows=rows,
        problems=tuple(problems),
        unfinished=unfinished,
        verified=run.verified,
        folder=folder,
    )


def _numbers_only(row: rows_of.Row) -> rows_of.Row:
    """The row with null for NaN and infinity: `nap run` writes it so, other programs may not."""
    return {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in row.items()}


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        content = files.parse_json(files.content(path))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return {}
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({error})")
        return {}
    if not isinstance(content, dict):
        problems.append(f"{path.name} holds no JSON object")
        return {}
    return content


def problems_html(group: Group) -> Html | None:
    """The runs that did not finish or cannot be read, with the reason."""
    items = [
        element("li", element("b", run.name), f": {'; '.join(run.problems)}")
        for run in group.runs
        if run.problems
    ]
    if not items:
        return None
    head = f"{len(items)} of {len(group.runs)} runs {'is' if len(items) == 1 else 'are'} not complete:"
    return element("div", head, element("ul", *items), class_="problem")


def run_again(group: Group) -> list[str]:
    """The commands in the manifests of the runs, each once, else the default one for their scale."""
    stored_commands = [run.manifest.get("command") for run in group.runs]
    texts = [shlex.join(map(str, c)) if isinstance(c, list) else str(c) for c in stored_commands if c]
    commands = list(dict.fromkeys(texts))
    scale = f" --scale {group.scale}" if group.scale else ""
    return commands or [f"nap run {group.experiment}{scale}"]


def facts_html(group: Group) -> Html:
    """Two folded boxes: settings; versions and machine."""
    shared, by_run = settings(group.runs)
    return join(
        element(
            "details",
            element("summary", "Settings"),
            element("h4", "Shared by all runs") if by_run else None,
            pairs(shared) if shared else element("p", "No config.json could be read.", class_="quiet"),
            element("h4", "Different between runs") if by_run else None,
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
            str(len(run.sessions) or "–"),
            f"{len(run.rows):,}",
        ]
        for run in group.runs
    ]
    return join(
        pairs(known) if known else None,
        table(["run", "state", "time", "sessions", "rows"], runs, label="runs", class_="wide"),
    )


def _finished(run: RunFacts) -> str:
    return "finished" if run.verified else f"finished, {UNVERIFIED}"


def settings(runs: tuple[RunFacts, ...]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The settings that all runs share, and those that differ, by run."""
    configs = {r.name: {k: as_text(v) for k, v in flat(r.config).items()} for r in runs if r.config}
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
    """A run's settings without nesting, and without the tags of its rows, which repeat some of them.

    >>> flat({"arm": {"norm": "layer"}, "settings": {"norm": 1, "lr": 0.1}, "tags": {"nap": True}})
    {'norm': 'layer', 'settings.norm': 1, 'lr': 0.1}
    """
    settings: dict[str, Any] = {}
    for key, value in config.items():
        inner = value if isinstance(value, dict) else {key: value}
        for name, setting in inner.items() if key != "tags" else ():
            settings[name if name not in settings else f"{key}.{name}"] = setting
    return settings


def manifest_facts(runs: tuple[RunFacts, ...]) -> dict[str, str]:
    """Versions, commit, device and platform from the manifests, each different value once."""
    facts: dict[str, list[str]] = {}
    for run in runs:
        for key, value in _flat(run.manifest).items():
            text = as_text(value)
            if text not in facts.setdefault(key, []):
                facts[key].append(text)
    return {key: "; ".join(values) if len(values) < 5 else _many(values) for key, values in facts.items()}


def as_text(value: Any) -> str:
    """A setting as text.

    >>> as_text([3, 0.5]), as_text(True), as_text(None), as_text(1e-4)
    ('3, 0.5', 'yes', 'none', '0.0001')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(as_text(item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {as_text(item)}" for key, item in value.items())
    return str(value)


def _many(values: list[str]) -> str:
    return f"{values[0]}; {values[1]}; … ({len(values)} different)"


def _flat(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Where the numbers come from, without names of hosts."""
    versions = manifest.get("versions")
    facts = dict(versions) if isinstance(versions, dict) else {}
    commit = manifest.get("commit")
    if commit:
        facts["commit"] = f"{commit}, with changes" if manifest.get("dirty") else commit
    facts |= {key: manifest[key] for key in ("device", "threads", "platform") if key in manifest}
    return facts
