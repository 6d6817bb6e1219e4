"""The parts of the page: an experiment's words, and its runs drawn, judged and described."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nap.lab.claims import Result, judge
from nap.lab.claims.folders import ODD_ROWS, in_words
from nap.lab.report import fig1, fig2, fig4, language, rainbow, revival, sequences, suite, vision, walk
from nap.lab.report.facts import Group
from nap.lab.report.facts_html import facts_html, problems_html, run_again
from nap.lab.report.figure_html import figure_html
from nap.lab.report.markup import Html, element
from nap.lab.report.panels import Figure
from nap.lab.report.verdicts import claims_table
from nap.lab.rows import Rows


@dataclass(frozen=True)
class Section:
    """An experiment on the page. `reads` names the experiment whose runs it is drawn from."""

    name: str
    reads: str
    title: str
    figures: Callable[[Rows], list[Figure]]
    missing: Callable[[Rows], list[str]]
    shows: str
    table: Callable[[Rows], Html | None] = lambda rows: None


SECTIONS = (
    Section(
        "fig1",
        "fig1",
        "Figure 1 · Case study: new random labels, task after task",
        fig1.figures,
        fig1.missing,
        "Without a norm, weights and gradients grow; with LayerNorm the weights still grow, the gradients "
        "shrink and later tasks are learnt less well; holding the weights' norm keeps the network as good as "
        "a fresh one.",
    ),
    Section(
        "fig2",
        "fig2",
        "Figure 2 · Coupled networks",
        fig2.figures,
        fig2.missing,
        "A projected network can follow its unconstrained twin: almost with one global learning-rate "
        "schedule, exactly with one for each layer.",
    ),
    Section(
        "fig3",
        "fig3",
        "Figure 3 · Implicit and explicit learning-rate schedules in Rainbow",
        rainbow.figures,
        rainbow.missing,
        "With fixed norms and a constant rate Rainbow learns less well than with LayerNorm, whose growing "
        "norms are a schedule; a linear schedule makes up for it, and more.",
    ),
    Section(
        "fig4",
        "fig4",
        "Figure 4 · Robustness to non-stationarity",
        fig4.figures,
        fig4.missing,
        "Without NaP the methods for keeping plasticity differ widely; with NaP nearly all improve and "
        "the gaps between them shrink.",
    ),
    Section(
        "stats",
        "fig4",
        "Appendix · Statistics of the networks of Figure 4",
        fig4.statistics,
        fig4.missing_statistics,
        "What happens inside those networks: units that became linear, the rank of the features, and the "
        "norms of parameters and gradients.",
    ),
    Section(
        "fig5-sequential",
        "fig5-sequential",
        "Figure 5, left · One agent for a sequence of games",
        rainbow.sequence,
        rainbow.missing_visits,
        "On its second visit to each game an agent with NaP learns like a fresh one; without it, it hardly "
        "learns.",
    ),
    Section(
        "fig5-suite",
        "fig3",
        "Figure 5, right · Four agents on many games",
        lambda rows: [],
        lambda rows: [],
        "Over all games NaP with a linear schedule scores best.",
        suite.summary,
    ),
    Section(
        "fig6",
        "fig6",
        "Figure 6 · Where the schedule ends",
        rainbow.figures,
        rainbow.missing_ends,
        "The faster the learning rate falls, the better at first; a longer schedule ends higher.",
    ),
    Section(
        "minatar",
        "minatar",
        "Figures 3 and 5, right, in MinAtar · Four agents on small games",
        rainbow.figures,
        rainbow.missing,
        "Said of Atari: with fixed norms and a constant rate Rainbow learns less well than with LayerNorm; "
        "with a linear schedule it scores best.",
    ),
    Section(
        "minatar-ends",
        "minatar-ends",
        "Figure 6 in MinAtar · Where the schedule ends",
        rainbow.figures,
        rainbow.missing_ends,
        "Said of Atari: the faster the rate falls, the better at first; a longer schedule ends higher.",
    ),
    Section(
        "minatar-sequential",
        "minatar-sequential",
        "Figure 5, left, in MinAtar · One agent for a sequence of games",
        rainbow.sequence,
        rainbow.missing_visits,
        "Said of Atari: on its second visit to each game an agent with NaP learns like a fresh one.",
    ),
    Section(
        "ablations",
        "ablations",
        "§1 and §3.3 · Rare projections, no offsets, weight decay",
        rainbow.figures,
        rainbow.missing_ablations,
        "Projecting every 1,000 updates gives the same agent; offsets are hardly needed; weight decay hurts "
        "agents that learn values.",
    ),
    Section(
        "revival",
        "revival",
        "Appendix · ReLU revival",
        revival.figures,
        revival.missing,
        "When the task changes suddenly, units die; in networks with a norm they come back.",
    ),
    Section(
        "walk",
        "walk",
        "Appendix · Random-walk model of dead units",
        walk.figures,
        walk.missing,
        "Under random gradients a norm slows the dying of units for gradient descent, and for RMSProp-like "
        "steps ends their steady accumulation; centring adds little.",
    ),
    Section(
        "table1-cifar",
        "table1-cifar",
        "Table 1, left · A VGG on CIFAR-10",
        vision.figures,
        vision.missing,
        "With the baseline's own learning-rate schedule, a network with NaP ends as good as the baseline.",
        vision.cifar,
    ),
    Section(
        "table1-imagenet",
        "table1-imagenet",
        "Table 1, left · A ResNet-50 on ImageNet",
        vision.figures,
        vision.missing,
        "With the baseline's own learning-rate schedule, a network with NaP ends as good as the baseline.",
        vision.imagenet,
    ),
    Section(
        "table1-language",
        "table1-language",
        "Table 1, right · A language model",
        language.figures,
        language.missing,
        "NaP does not get in the way of a language model; on other texts and on questions it is slightly "
        "better than the baseline and than norms alone.",
        language.evaluation,
    ),
    Section(
        "induction",
        "induction",
        "Appendix · Copying what came before",
        sequences.induction,
        sequences.missing_induction,
        "Norms and projection do not keep a transformer from learning to copy; they speed it up.",
    ),
    Section(
        "strings",
        "strings",
        "Appendix · Random strings, data set after data set",
        sequences.strings,
        sequences.missing_strings,
        "A plain transformer loses plasticity; weight projection and weight decay make it more robust.",
    ),
)
STATE = "optimizer_state"  # of rows: what happened to the optimizer at a change of task
MOST_NAMES = 12  # of what is missing; more would bury the figure


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
    """The <section>: what the paper shows, where the rows are from, what is missing, figures, claims."""
    section, group = part.section, part.group
    own = section.name == section.reads
    drawn = _drawn(part) if len(group.rows) else [_problem("No rows yet", "nothing to draw.")]
    return element(
        "section",
        element("h2", section.title),
        element("p", element("b", "In the paper: "), section.shows),
        _source(part),
        problems_html(group) if own else None,
        *drawn,
        _problem("Not judged", part.trouble) if part.trouble else None,
        claims_table(part.results) if part.results else None,
        facts_html(group) if own else None,
        id=part.anchor,
    )


def _judged(rows: Rows) -> tuple[list[Result], str]:
    """Verdicts, or why these rows allow none: two runs that claim the same arm and seed, for example."""
    try:
        return judge(rows), ""
    except ODD_ROWS as error:
        return [], in_words(error)


def _source(part: Part) -> Html:
    """Where the rows come from, and how to get them again."""
    group = part.group
    seeds = len(group.rows.unique("seed"))
    words = [f"From {group.folder}"]
    words += [f"scale {group.scale}"] if group.scale else []
    words += [f"{seeds} seed{'s' * (seeds != 1)}"] if seeds else []
    if part.section.name != part.section.reads:
        return element("p", f"{' · '.join(words)} · the runs of {group.experiment}, above.", class_="quiet")
    commands = [element("code", command) for command in run_again(group)]
    if len(commands) == 1:
        return element("p", " · ".join(words), " · run again: ", *commands, class_="quiet")
    words.append(f"made by {len(commands)} commands")
    each = element("ul", *(element("li", command) for command in commands))
    return element("details", element("summary", " · ".join(words)), each, class_="quiet")


def _drawn(part: Part) -> list[Html]:
    """What is missing, then the figures; where rows contradict each other, the rest is still worth having."""
    rows = part.group.rows
    try:
        names, figures = part.section.missing(rows), figures_of(part.section, rows)
        numbers = part.section.table(rows)
    except ODD_ROWS as error:
        return [_problem("Not drawn", in_words(error))]
    more = f" · and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    note = element(
        "p", element("b", "No rows for: "), " · ".join(names[:MOST_NAMES]) + more, class_="missing"
    )
    named = (replace(figure, name=f"{part.anchor}-{figure.name}") for figure in figures)
    return [*([note] if names else []), *([numbers] if numbers else []), *map(_figure, named)]


def _figure(figure: Figure) -> Html:
    """The figure, or why its rows cannot be drawn: all of a kind are missing, for example."""
    try:
        return figure_html(figure)
    except ODD_ROWS as error:
        return _problem(f"Not drawn, {figure.name}", in_words(error))


def figures_of(section: Section, rows: Rows) -> list[Figure]:
    """The figures of a section; where runs reset the optimizer and others keep it, once for each."""
    states = sorted((str(state) for state in rows.unique(STATE) if state is not None), reverse=True)
    if len(states) < 2:
        return section.figures(rows)
    return [
        replace(figure, name=f"{figure.name}-{state}", title=_with_state(figure.title, state))
        for state in states
        for figure in section.figures(rows.where(**{STATE: state}))
    ]


def _with_state(title: str, state: str) -> str:
    words = {"reset": "optimizer reset at each task change", "keep": "optimizer state kept"}.get(state, state)
    return f"{title}, {words}" if title else words.capitalize()


def _problem(what: str, why: str) -> Html:
    return element("p", element("b", f"{what}: "), why, class_="problem")
