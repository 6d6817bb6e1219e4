"""One part of the page: an experiment's runs, drawn, judged and described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nap.lab.claims import Result, judge
from nap.lab.report.facts import Group
from nap.lab.report.facts_html import facts_html, missing_html, problems_html
from nap.lab.report.figure_html import figure_html
from nap.lab.report.markup import Html, element
from nap.lab.report.sections import SECTIONS, Section
from nap.lab.report.verdicts import claims_table
from nap.lab.rows import Rows


@dataclass(frozen=True)
class Part:
    """A section about one group of runs, with its verdicts, or in `trouble` why there are none."""

    anchor: str
    section: Section
    group: Group
    results: Sequence[Result]
    trouble: str = ""


def parts_of(groups: Sequence[Group]) -> list[Part]:
    """Every section for each group that it can be drawn from, in the paper's order."""
    judged = [_judged(group.rows) for group in groups]
    pairs = [
        (section, group, results, trouble)
        for section in SECTIONS
        for group, (results, trouble) in zip(groups, judged, strict=True)
        if group.experiment == section.reads
    ]
    return [
        Part(f"part-{i}", section, group, [r for r in results if r[0].experiment == section.name], trouble)
        for i, (section, group, results, trouble) in enumerate(pairs)
    ]


def part_html(part: Part) -> Html:
    """The <section>: what the paper shows, what is missing, figures, claims, settings."""
    section, group = part.section, part.group
    own = section.name == section.reads
    scale = f", scale {group.scale}" if group.scale else ""
    return element(
        "section",
        element("h2", section.title),
        element("p", element("b", "In the paper: "), section.shows),
        element("p", f"Drawn from {group.folder}{scale}.", class_="quiet"),
        problems_html(group) if own else None,
        missing_html(section.missing(group.rows))
        if len(group.rows)
        else _problem("No rows yet", "nothing to draw."),
        *(_figures(part) if len(group.rows) else ()),
        _problem("Not judged", part.trouble) if part.trouble else None,
        claims_table(part.results) if part.results else None,
        facts_html(group) if own else _see(section.reads),
        id=part.anchor,
    )


def _judged(rows: Rows) -> tuple[list[Result], str]:
    """Verdicts, or why these rows allow none: two runs that claim the same arm and seed, for example."""
    try:
        return judge(rows), ""
    except ValueError as error:
        return [], str(error)


def _figures(part: Part) -> list[Html]:
    try:
        figures = part.section.figures(part.group.rows)
    except ValueError as error:  # rows that contradict each other; the rest of the page is still worth having
        return [_problem("Not drawn", str(error))]
    return [figure_html(replace(figure, name=f"{part.anchor}-{figure.name}")) for figure in figures]


def _problem(what: str, why: str) -> Html:
    return element("p", element("b", f"{what}: "), why, class_="problem")


def _see(experiment: str) -> Html:
    return element(
        "p", f"Drawn from the runs of {experiment}: settings and versions are there.", class_="quiet"
    )
