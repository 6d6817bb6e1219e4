"""The whole page: headline, overview, a part for each experiment, and the experiments without runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from nap.lab.claims import Result, evaluate
from nap.lab.claims.folders import ROW_ERRORS, explain
from nap.lab.experiments import MODULES, modules, readers
from nap.lab.experiments.experiment import Experiment
from nap.lab.report.draw import figure_html
from nap.lab.report.facts import Group, facts_html, problems_html, run_again
from nap.lab.report.markup import CSS, Html, element, join, table
from nap.lab.report.panels import Figure, arms_without_rows
from nap.lab.report.style import duration
from nap.lab.report.verdicts import SIGNS, claims_table, counts, headline
from nap.lab.rows import Rows

TITLE = "Normalize-and-Project: what the runs show"
STATE = "optimizer_state"  # of rows: what happened to the optimizer at a change of task
FILMS = "films.json"  # in the folder of a run: which films lie there, and what they show
MAX_NAMES = 12  # of missing arms; more would bury the figure


def page(groups: Sequence[Group], tunings: Sequence[Html] = ()) -> str:
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
        *tunings,
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
    seconds = sum(run.seconds for run in runs)
    parts = [f"{len(runs)} run{'s' * (len(runs) != 1)}"]
    parts += [f"{broken} of them not complete"] if broken else []
    parts += [f"{duration(seconds)} of training"] if seconds else []
    return " · ".join(parts)


def _overview(parts: Sequence[Part]) -> Html:
    body = []
    for part in parts:
        runs, verdicts = part.group.runs, counts(part.results)
        body.append(
            [
                element("a", part.title, href=f"#{part.anchor}"),
                *(str(verdicts[verdict]) for verdict in SIGNS),
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
    """The other experiments of the paper; nothing where a user compares on a model of their own."""
    present = {part.experiment.name for part in parts}
    names = [name for name in MODULES if name not in present] if present & set(MODULES) else []
    commands = join(*(element("code", f"nap run {name}") for name in names), between=", ")
    return element("div", "Not in this folder: ", commands) if names else None


@dataclass(frozen=True)
class Part:
    """An experiment and one group of runs, with the verdicts."""

    anchor: str
    experiment: Experiment
    group: Group
    results: Sequence[Result]
    error: str = ""  # why there are no verdicts

    @property
    def title(self) -> str:
        """As a heading."""
        return self.experiment.title[0].upper() + self.experiment.title[1:]

    @property
    def shares_runs(self) -> bool:
        """Whether the runs belong to another experiment, whose part describes them."""
        return self.experiment.name != self.group.experiment

    @property
    def figures(self) -> list[Figure]:
        """Its figures, once for each treatment of the optimizer at a change of task."""
        draw: Callable[[Rows], list[Figure]] | None = getattr(self.experiment.figure, "figures", None)
        rows = self.group.rows
        states = sorted((str(state) for state in rows.unique(STATE) if state is not None), reverse=True)
        if draw is None or len(states) < 2:
            return draw(rows) if draw else []
        return [
            replace(figure, name=f"{figure.name}-{state}", title=_with_state(figure.title, state))
            for state in states
            for figure in draw(rows.where(**{STATE: state}))
        ]

    @property
    def table(self) -> Html | None:
        """Its results as a table, if its figure module makes one."""
        make = getattr(self.experiment.figure, "table", None)
        return make(self.group.rows) if make else None

    @property
    def missing(self) -> list[str]:
        """The expected arms that have no rows."""
        return missing_arms(self.experiment.figure, self.group.rows)


def missing_arms(module: ModuleType | None, rows: Rows) -> list[str]:
    """The arms without rows among a figure module's EXPECTED_ARMS, or what its `missing` names."""
    if module is not None and hasattr(module, "missing"):
        return list(module.missing(rows))
    arms, column = getattr(module, "EXPECTED_ARMS", ()), getattr(module, "EXPECTED_BY", "")
    return arms_without_rows(rows, arms, by=column)


def parts_of(groups: Sequence[Group]) -> list[Part]:
    """A part for every experiment that reads the rows of a group, in the paper's order."""
    pairs = [
        (reader, group, *_verdicts(group.rows)) for group in groups for reader in readers(group.experiment)
    ]
    pairs.sort(key=lambda pair: (pair[0].order, pair[0].name))
    return [
        Part(f"part-{i}", reader, group, [r for r in results if r[0].experiment == reader.name], error)
        for i, (reader, group, results, error) in enumerate(pairs)
    ]


def part_html(part: Part) -> Html:
    """The <section>: what the paper shows, the source of the rows, what is missing, figures, claims."""
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
        _problem("No verdicts", part.error) if part.error else None,
        claims_table(part.results) if part.results else None,
        None if part.shares_runs else facts_html(group),
        id=part.anchor,
    )


def _verdicts(rows: Rows) -> tuple[list[Result], str]:
    """The verdicts, or why there are none: two runs with the same arm and seed, for example."""
    try:
        return evaluate(rows), ""
    except ROW_ERRORS as error:
        return [], explain(error)


def _source(part: Part) -> Html:
    """The folder of the rows, and the commands that made them."""
    group = part.group
    seeds = len(group.rows.unique("seed"))
    parts = [f"From {group.folder}"]
    parts += [f"scale {group.scale}"] if group.scale and part.experiment.named_by_scale else []
    parts += [f"{seeds} seed{'s' * (seeds != 1)}"] if seeds else []
    if part.shares_runs:
        return element("p", f"{' · '.join(parts)} · the runs of {group.experiment}, above.", class_="quiet")
    commands = [element("code", command) for command in run_again(group)]
    if len(commands) == 1:
        return element("p", " · ".join(parts), " · run again: ", *commands, class_="quiet")
    parts.append(f"made by {len(commands)} commands")
    each = element("ul", *(element("li", command) for command in commands))
    return element("details", element("summary", " · ".join(parts)), each, class_="quiet")


def _drawn(part: Part) -> list[Html]:
    """What is missing, the table and the figures; an error in the rows takes the place of what it breaks."""
    if part.experiment.figure is None:
        return [element("p", "This experiment has no figure.", class_="quiet")]
    try:
        names, figures, numbers = part.missing, part.figures, part.table
    except ROW_ERRORS as error:
        return [_problem("Not drawn", explain(error))]
    more = f" · and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    listed = " · ".join(f"“{name}”" for name in names[:MAX_NAMES])
    note = element("p", element("b", "No rows for: "), listed + more, class_="missing")
    named = (replace(figure, name=f"{part.anchor}-{figure.name}") for figure in figures)
    return [*([note] if names else []), *([numbers] if numbers else []), *map(_figure, named)]


def _figure(figure: Figure) -> Html:
    """The figure, or why its rows cannot be drawn."""
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
    labels = {"reset": "optimizer reset at each task change", "keep": "optimizer state kept"}
    label = labels.get(state, state)
    return f"{title}, {label}" if title else label.capitalize()


def _problem(title: str, reason: str) -> Html:
    return element("p", element("b", f"{title}: "), reason, class_="problem")
