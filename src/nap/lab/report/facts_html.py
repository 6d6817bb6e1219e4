"""Settings, versions, problems and the way to run again, as HTML."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from nap.lab.report.facts import Group, RunFacts
from nap.lab.report.markup import Html, element, join, pairs, table
from nap.lab.report.style import duration
from nap.lab.stored import UNVERIFIED


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
