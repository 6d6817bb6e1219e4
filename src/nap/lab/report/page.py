"""The whole page: headline, overview, one part for each experiment, and what is not there."""

from __future__ import annotations

from collections.abc import Sequence

from nap.lab.experiments import MODULES
from nap.lab.report.facts import Group
from nap.lab.report.facts_html import facts_html, problems_html
from nap.lab.report.markup import Html, element, join, table
from nap.lab.report.sections import Part, part_html, parts_of
from nap.lab.report.sensitivity import Tuning, section
from nap.lab.report.sheet import CSS
from nap.lab.report.style import duration
from nap.lab.report.verdicts import SIGNS, counts, headline

TITLE = "Normalize-and-Project: what the runs show"


def page(groups: Sequence[Group], tunings: Sequence[Tuning] = ()) -> str:
    """The HTML document for these runs; it needs no other file and no network."""
    parts = parts_of(groups)
    results = [result for part in parts for result in part.results]
    header = element(
        "header",
        element("h1", TITLE),
        element("p", _lead(groups), class_="lead"),
        headline(results) if results else None,
        _overview(parts) if parts else None,
    )
    main = element(
        "main",
        *(part_html(part) for part in parts),
        *(section(tuning, f"rates-{number}") for number, tuning in enumerate(tunings)),
        *_without_figure(groups),
    )
    made_by = element("p", "Made by ", element("code", "nap report"), " from stored rows.")
    body = join(header, main, element("footer", _absent(parts), made_by), between="\n")
    head = join(
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<link rel="icon" href="data:,">'),  # else browsers ask the server for one
        element("title", TITLE),
        element("style", Html(CSS)),
        between="\n",
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _lead(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    broken = sum(bool(run.problems) for run in runs)
    work = sum(run.seconds for run in runs)
    words = [f"{len(runs)} run{'s' * (len(runs) != 1)}"]
    words += [f"{broken} of them not complete"] if broken else []
    words += [f"{duration(work)} of work"] if work else []
    return " · ".join(words)


def _overview(parts: Sequence[Part]) -> Html:
    body = []
    for part in parts:
        runs, found = part.group.runs, counts(part.results)
        body.append(
            [
                element("a", part.title, href=f"#{part.anchor}"),
                *(str(found[verdict]) for verdict in SIGNS),
                str(len(part.group.rows.unique("seed")) or "–"),
                part.group.scale or "–",
                f"{sum(not run.problems for run in runs)} of {len(runs)}",
            ]
        )
    head = ["Experiment", "✓ Holds", "✗ Fails", "? Unclear", "Seeds", "Scale", "Runs complete"]
    return table(head, body, label="overview", class_="wide overview")


def _without_figure(groups: Sequence[Group]) -> list[Html]:
    return [
        element(
            "section",
            element("h2", f"{group.folder}: {group.experiment}"),
            problems_html(group),
            element("p", "This report has no figure for this experiment.", class_="quiet"),
            facts_html(group),
        )
        for group in groups
        if group.experiment not in MODULES
    ]


def _absent(parts: Sequence[Part]) -> Html | None:
    there = {part.experiment.name for part in parts}
    names = [name for name in MODULES if name not in there]
    commands = join(*(element("code", f"nap run {name}") for name in names), between=", ")
    return element("div", "Not in this folder: ", commands) if names else None
