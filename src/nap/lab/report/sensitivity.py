"""Learning-rate sensitivity: results by arm and learning rate, from the files that `nap tune` writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from nap.lab import files
from nap.lab.experiments import load, modules
from nap.lab.report import TUNED
from nap.lab.report.curves import curve
from nap.lab.report.draw import figure_html
from nap.lab.report.markup import Html, element
from nap.lab.report.panels import Figure, Line, Panel
from nap.lab.report.style import styles_for

STATE = ", optimizer "  # in a label, in front of the treatment of the optimizer at a change of task
TOLERANCE = 0.05  # relative to the best result: rates that lose less are called usable


@dataclass(frozen=True)
class Tuning:
    """The results of a tuning: for each arm and learning rate a number for each seed."""

    folder: str
    experiment: str
    scale: str
    metric: str
    highest: bool  # whether higher is better
    seeds: Sequence[int]
    results: Mapping[str, Mapping[float, Sequence[float | None]]]  # None: that seed diverged
    finished: bool = True


def find(directory: Path) -> list[Tuning]:
    """The tunings at or below a folder; other files of that name are skipped."""
    paths = sorted(directory.rglob(TUNED))
    return [tuning for path in paths if (tuning := _read(path, directory)) is not None]


def _read(path: Path, directory: Path) -> Tuning | None:
    try:
        content = files.parse_json(files.content(path))
        labels = _without_shared_state(content.get("labels", {}))
        results = {
            str(labels.get(name, name)): {
                float(rate): [_number(v) for v in by_rate[rate]] for rate in by_rate
            }
            for name, by_rate in content["results"].items()
        }
        return Tuning(
            str(path.parent.relative_to(directory)) if path.parent != directory else directory.name,
            str(content["experiment"]),
            str(content["scale"]),
            str(content["metric"]),
            content["goal"] == "highest",
            [int(seed) for seed in content["seeds"]],
            results,
            bool(content.get("finished", True)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _without_shared_state(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels without the treatment of the optimizer, where it is the same for all.

    >>> _without_shared_state({"a": "NaP, optimizer reset", "b": "fresh, optimizer reset"})
    {'a': 'NaP', 'b': 'fresh'}
    """
    ends = {label.rpartition(STATE)[2] for label in labels.values()}
    shared = len(ends) == 1 and all(STATE in label for label in labels.values())
    return {name: label.rpartition(STATE)[0] if shared else label for name, label in labels.items()}


def _number(value: Any) -> float | None:
    return None if value is None or not isfinite(value) else float(value)


def by_setting(labels: Iterable[str]) -> dict[str, dict[str, str]]:
    """Labels by setting and arm, where all name a setting and settings have arms in common.

    >>> by_setting(["CNN, random, none", "CNN, random, NaP", "MLP, random, none", "MLP, random, NaP"]).keys()
    dict_keys(['CNN, random', 'MLP, random'])
    >>> by_setting(["LayerNorm", "LayerNorm, rescaled", "NaP"]).keys()
    dict_keys([''])
    """
    settings: dict[str, dict[str, str]] = {}
    for label in labels:
        setting, _, arm = label.rpartition(", ")
        settings.setdefault(setting, {})[arm] = label
    arms = [set(of) for of in settings.values()]
    if "" in settings or len(arms) < 2 or not set.intersection(*arms):
        return {"": {label: label for of in settings.values() for label in of.values()}}
    return settings


def figure(tuning: Tuning, name: str) -> Figure:
    """A panel for each setting of the task, with a line for each arm over a log axis of learning rates."""
    module = load(tuning.experiment).figure if tuning.experiment in modules() else None
    settings = by_setting(tuning.results)
    arms = {arm: arm.split(STATE)[0] for labels in settings.values() for arm in labels}
    styles = styles_for(getattr(module, "STYLES", {}), arms.values())
    metric = tuning.metric.replace("_", " ").capitalize()
    panels = []
    for setting, labels in settings.items():
        lines = []
        for arm, label in labels.items():
            results = tuning.results[label]
            rates = sorted(results)
            values = np.array([[np.nan if v is None else v for v in results[r]] for r in rates], float).T
            if values.size:
                lines.append(Line(arm, styles[arms[arm]], curve(values, np.array(rates), smooth=False)))
        note = "" if lines else "No rate has all its seeds yet."
        title = f"{metric}: {setting}" if setting else metric
        panels.append(
            Panel(
                title=title,
                x_label="learning rate",
                lines=lines,
                x_log=True,
                note=note,
                fraction="accuracy" in tuning.metric,
            )
        )
    unfinished = "" if tuning.finished else " The search is not finished."
    return Figure(
        name,
        panels,
        columns=2,
        caption=f"Result of each arm by learning rate, on tuning seeds.{unfinished}",
    )


def usable(
    results: Mapping[float, Sequence[float | None]], *, highest: bool
) -> tuple[float, float, float] | None:
    """The best rate, and the lowest and highest whose mean is within a twentieth of the best.

    >>> usable({1e-4: [0.60], 2e-4: [0.70], 4e-4: [0.68], 8e-4: [None]}, highest=True)
    (0.0002, 0.0002, 0.0004)
    """
    means = {
        rate: float(np.mean([v for v in values if v is not None]))
        for rate, values in results.items()
        if None not in values
    }
    if not means:
        return None
    best = (max if highest else min)(means, key=lambda rate: means[rate])
    near = [rate for rate, mean in means.items() if abs(mean - means[best]) <= TOLERANCE * abs(means[best])]
    return best, min(near), max(near)


def _fewer_seeds(tuning: Tuning, name: str) -> str:
    """A note if a search was cut off before all seeds of an arm were run."""
    count = min(len(values) for values in tuning.results[name].values())
    return f" (on {count} of {len(tuning.seeds)} seeds)" if count < len(tuning.seeds) else ""


def _name(tuning: Tuning) -> str:
    known = tuning.experiment in modules() and load(tuning.experiment)
    return f"{tuning.experiment}, scale {tuning.scale}" if not known or known.named_by_scale else "by arm"


def ranges(tuning: Tuning) -> Html | None:
    """The best rate of each arm and the range of rates nearly as good, as a list."""
    ranges = {name: usable(results, highest=tuning.highest) for name, results in tuning.results.items()}
    rows = [
        element(
            "li",
            f"{name}: best at {best:g}; results within {TOLERANCE:.0%} of it from {low:g} to {high:g}"
            f"{_fewer_seeds(tuning, name)}",
        )
        for name, found in ranges.items()
        if found is not None
        for best, low, high in [found]
    ]
    return element("ul", *rows) if rows else None


def sections(directory: Path) -> list[Html]:
    """The <section> of each tuning at or below a folder."""
    return [section(tuning, f"rates-{number}") for number, tuning in enumerate(find(directory))]


def section(tuning: Tuning, anchor: str) -> Html:
    """The <section> of one tuning."""
    goal = "highest" if tuning.highest else "lowest"
    return element(
        "section",
        element("h2", f"Learning rates · {_name(tuning)}"),
        element(
            "p",
            f"From {tuning.folder} · seeds {tuning.seeds[0]} to {tuning.seeds[-1]}, which no result uses · "
            f"chosen by the {goal} {tuning.metric.replace('_', ' ')}",
            class_="quiet",
        ),
        figure_html(figure(tuning, anchor)),
        ranges(tuning),
        id=anchor,
    )
