"""The whole page: headline, overview, one part for each experiment, and what is not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nap.lab.claims import Result, evaluate
from nap.lab.claims.folders import ROW_ERRORS, explain
from nap.lab.experiments import MODULES, modules, readers
from nap.lab.experiments.experiment import Experiment
from nap.lab.report.draw import figure_html
from nap.lab.report.facts import Group, facts_html, problems_html, run_again
from nap.lab.report.markup import CSS, Html, element, join, table
from nap.lab.report.panels import Figure
from nap.lab.report.sensitivity import Tuning, section
from nap.lab.report.style import duration
from nap.lab.report.verdicts import SIGNS, claims_table, counts, headline
from nap.lab.rows import Rows

TITLE = "Normalize-and-Project: what the runs show"
STATE = "optimizer_state"  # of rows: what happened to the optimizer at a change of task
FILMS = "films.json"  # in the folder of a run: which films lie there, and what they show
MOST_NAMES = 12  # of what is missing; more would bury the figure


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
                (part.experiment.named_by_scale and part.group.scale) or "–",
                f"{sum(not run.problems for run in runs)} of {len(runs)}",
            ]
        )
    head = ["Experiment", "✓ Holds", "✗ Fails", "? Open", "Seeds", "Scale", "Runs complete"]
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
        if group.experiment not in modules()
    ]


def _absent(parts: Sequence[Part]) -> Html | None:
    there = {part.experiment.name for part in parts}
    names = [name for name in MODULES if name not in there]
    commands = join(*(element("code", f"nap run {name}") for name in names), between=", ")
    return element("div", "Not in this folder: ", commands) if names else None


@dataclass(frozen=True)
class Part:
    """An experiment on one group of runs, with its verdicts, or in `trouble` why there are none."""

    anchor: str
    experiment: Experiment
    group: Group
    results: Sequence[Result]
    trouble: str = ""

    @property
    def title(self) -> str:
        """As a heading."""
        return self.experiment.title[0].upper() + self.experiment.title[1:]

    @property
    def shares_runs(self) -> bool:
        """Whether the runs are those of another experiment, which has described them."""
        return self.experiment.name != self.group.experiment

    @property
    def figures(self) -> list[Figure]:
        """Its figures; where runs reset the optimizer and others keep it, once for each."""
        draw, rows = self.experiment.figure, self.group.rows
        if draw is None:
            return []
        states = sorted((str(state) for state in rows.unique(STATE) if state is not None), reverse=True)
        if len(states) < 2:
            found: list[Figure] = draw.figures(rows)
            return found
        return [
            replace(figure, name=f"{figure.name}-{state}", title=_with_state(figure.title, state))
            for state in states
            for figure in draw.figures(rows.where(**{STATE: state}))
        ]

    @property
    def table(self) -> Html | None:
        """Its numbers as a table, where its figure module makes one."""
        make = getattr(self.experiment.figure, "table", None)
        return make(self.group.rows) if make else None

    @property
    def missing(self) -> list[str]:
        """The arms that have no rows, and whatever else is not there."""
        draw = self.experiment.figure
        return [] if draw is None else list(draw.missing(self.group.rows))


def parts_of(groups: Sequence[Group]) -> list[Part]:
    """Every experiment that has something to say of a group of runs, in the paper's order."""
    found = [
        (reader, group, *_judged(group.rows)) for group in groups for reader in readers(group.experiment)
    ]
    found.sort(key=lambda each: (each[0].order, each[0].name))
    return [
        Part(f"part-{i}", reader, group, [r for r in results if r[0].experiment == reader.name], trouble)
        for i, (reader, group, results, trouble) in enumerate(found)
    ]


def part_html(part: Part) -> Html:
    """The <section>: what the paper shows, where the rows are from, what is missing, figures, claims."""
    group = part.group
    of_paper = part.experiment.name in MODULES
    drawn = _drawn(part) if len(group.rows) else [_problem("No rows yet", "nothing to draw.")]
    return element(
        "section",
        element("h2", part.title),
        element("p", element("b", "In the paper: ") if of_paper else None, part.experiment.shows),
        _source(part),
        None if part.shares_runs else problems_html(group),
        *drawn,
        None if part.shares_runs else _films(group),
        _problem("Not judged", part.trouble) if part.trouble else None,
        claims_table(part.results) if part.results else None,
        None if part.shares_runs else facts_html(group),
        id=part.anchor,
    )


def _judged(rows: Rows) -> tuple[list[Result], str]:
    """Verdicts, or why these rows allow none: two runs that claim the same arm and seed, for example."""
    try:
        return evaluate(rows), ""
    except ROW_ERRORS as error:
        return [], explain(error)


def _source(part: Part) -> Html:
    """Where the rows come from, and how to get them again."""
    group = part.group
    seeds = len(group.rows.unique("seed"))
    words = [f"From {group.folder}"]
    words += [f"scale {group.scale}"] if group.scale and part.experiment.named_by_scale else []
    words += [f"{seeds} seed{'s' * (seeds != 1)}"] if seeds else []
    if part.shares_runs:
        return element("p", f"{' · '.join(words)} · the runs of {group.experiment}, above.", class_="quiet")
    commands = [element("code", command) for command in run_again(group)]
    if len(commands) == 1:
        return element("p", " · ".join(words), " · run again: ", *commands, class_="quiet")
    words.append(f"made by {len(commands)} commands")
    each = element("ul", *(element("li", command) for command in commands))
    return element("details", element("summary", " · ".join(words)), each, class_="quiet")


def _drawn(part: Part) -> list[Html]:
    """What is missing, then the figures; where rows contradict each other, the rest is still worth having."""
    if part.experiment.figure is None:
        return [element("p", "This experiment has no figure.", class_="quiet")]
    try:
        names, figures, numbers = part.missing, part.figures, part.table
    except ROW_ERRORS as error:
        return [_problem("Not drawn", explain(error))]
    more = f" · and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    listed = " · ".join(f"“{name}”" for name in names[:MOST_NAMES])
    note = element("p", element("b", "No rows for: "), listed + more, class_="missing")
    named = (replace(figure, name=f"{part.anchor}-{figure.name}") for figure in figures)
    return [*([note] if names else []), *([numbers] if numbers else []), *map(_figure, named)]


def _figure(figure: Figure) -> Html:
    """The figure, or why its rows cannot be drawn: all of a kind are missing, for example."""
    try:
        return figure_html(figure)
    except ROW_ERRORS as error:
        return _problem(f"Not drawn, {figure.name}", explain(error))


def _films(group: Group) -> Html | None:
    """Films of agents, where `nap play` made some."""
    if not any((run.folder / FILMS).is_file() for run in group.runs):
        return None
    from nap.lab.report.films import films_html

    return films_html((run.name, run.folder) for run in group.runs)


def _with_state(title: str, state: str) -> str:
    words = {"reset": "optimizer reset at each task change", "keep": "optimizer state kept"}.get(state, state)
    return f"{title}, {words}" if title else words.capitalize()


def _problem(what: str, why: str) -> Html:
    return element("p", element("b", f"{what}: "), why, class_="problem")
