"""What is known of the runs behind a figure: settings, versions, devices, and which did not finish."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nap.lab import rows as rows_of
from nap.lab.claims.samples import UNFINISHED
from nap.lab.rows import Rows

SHARES_RUNS_OF = {"stats": "fig4"}  # experiments that read the rows of another one's runs


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
    unfinished: bool

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
        marks = {run.name: {UNFINISHED: True} if run.unfinished else {} for run in self.runs}
        return Rows({"run": run.name} | row | marks[run.name] for run in self.runs for row in run.rows)


def find_groups(directory: Path) -> list[Group]:
    """The runs at or below a folder, by the folder they lie in, their experiment and scale."""
    homes = sorted(
        {path.parent for name in ("config.json", rows_of.FILE_NAME) for path in directory.rglob(name)}
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
    return [Group(*key, tuple(runs)) for key, runs in found.items()]


def read_run(home: Path) -> RunFacts:
    """The facts of one run's folder; whatever is torn, missing or unfinished becomes a problem in words."""
    problems: list[str] = []
    about = _read_json(home / "config.json", problems)
    manifest = _read_json(home / "manifest.json", problems)
    rows = Rows()
    if (home / rows_of.FILE_NAME).is_file():
        try:
            rows = rows_of.read(home / rows_of.FILE_NAME)
        except ValueError as error:
            problems.append(str(error).replace(str(home), home.name))
    if not len(rows):
        problems.append("it has no rows")
    unfinished = (home / "manifest.json").exists() and not manifest.get("finished")
    if manifest and unfinished:
        problems.append(f"it did not finish ({manifest.get('exit') or 'still at work, or killed'})")
    experiment = str(about.get("experiment") or (rows[0].get("experiment") if len(rows) else "") or "unknown")
    config = about.get("config")
    return RunFacts(
        name=str(about.get("run") or home.name),
        experiment=SHARES_RUNS_OF.get(experiment, experiment),
        scale=str(about.get("scale") or ""),
        config=config if isinstance(config, dict) else {},
        manifest=manifest,
        rows=rows,
        problems=tuple(problems),
        unfinished=unfinished,
    )


def settings(runs: tuple[RunFacts, ...]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Settings that all runs share, and by run those in which they differ."""
    known = [run for run in runs if run.config]
    configs = {run.name: {key: words(value) for key, value in run.config.items()} for run in known}
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


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return {}
    except ValueError as error:
        problems.append(f"{path.name} cannot be read ({error})")
        return {}
    if not isinstance(found, dict):
        problems.append(f"{path.name} holds no JSON object")
        return {}
    return found
