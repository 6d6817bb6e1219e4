"""MkDocs hook: tables, verdicts and figures of the pages, made from evidence/ at each build.

A page asks for them in a comment on a line of its own:

    <!-- lab: commands fig1 -->       how to run it at three scales, and the runs that we made
    <!-- lab: figure fig1-small -->   the first figure of these rows
    <!-- lab: verdicts fig1 -->       all claims, tested on all rows but superseded ones, and the figures
    <!-- lab: archive fig1-small -->  the same of these rows alone
    <!-- lab: rates fig1-small-tuning -->  result against learning rate, arm by arm, from a tuning
    <!-- lab: ranges fig1-small -->   the range of each measure, arm by arm, in these rows
    <!-- lab: overview -->            all experiments
    <!-- lab: summary -->             every verdict, and what fails
    <!-- lab: records -->             every verdict and what was superseded, as in PAPER.md

A picture `figures/NAME.png` of rows in evidence/ is redrawn, too. So nothing on these pages can differ
from the rows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from nap.lab.claims import Verdict
from nap.lab.claims.verdicts import summary
from nap.lab.experiments import MODULES, experiments
from nap.lab.experiments.experiment import Experiment
from nap.lab.report import sensitivity
from nap.lab.report.draw import figure_html
from nap.lab.report.facts import find_groups
from nap.lab.report.page import Part, parts_of
from nap.lab.report.style import number
from nap.lab.report.verdicts import claims_table, counts

sys.path.insert(0, str(Path(__file__).parent))  # this folder is no package
from records import ROOT, SCALES, Record, records, unpacked, verdict_table

MARKER = re.compile(r"^<!-- lab: (\w+) ?(.*?) -->$", re.MULTILINE)
PICTURE = re.compile(r"^!\[[^\]]*\]\((?:\.\./)?figures/([\w-]+)\.png\)$", re.MULTILINE)
MEASURES = (
    *("dead_units", "linearized_units", "dormant_units", "feature_rank"),
    *("parameter_norm", "gradient_norm", "jacobian_norm"),
)
NO_BREAK = "\u00a0"
WITHOUT_DEVICE = {"walk"}  # random walks on a CPU at every scale

HOLDS, FAILS, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN
_html: dict[str, Callable[[], str]] = {}  # place in a page → its HTML, drawn when Markdown is rendered


@cache
def experiment(name: str) -> Experiment:
    return experiments([name])[name]


def records_of(name: str) -> list[Record]:
    """The records of an experiment that have not been superseded."""
    return [record for record in records() if name in record.experiments and record.current]


def counted(name: str, record: Record) -> str:
    """Hold / fail / open, together with the other experiments that read the same rows."""
    others = " and ".join(f"`{other}`" for other in record.experiments if other != name)
    count = record.counted.replace(" ", NO_BREAK)
    return f"{count} (with {others})" if others else count


@cache
def parts(archive: str) -> tuple[Part, ...]:
    """The parts of the report for the rows of an archive: one for each experiment that reads them."""
    (record,) = [record for record in records() if record.name == archive]
    assert record.archive is not None, f"{archive} has no rows in evidence/"
    with unpacked(record.archive) as folder:
        return tuple(parts_of(find_groups(folder)))


def command(name: str, scale: str) -> str:
    """The command that runs it at one scale."""
    words = f"nap run {name}" if scale == "demo" else f"nap run {name} --scale {scale}"
    return words if scale == "demo" or name in WITHOUT_DEVICE else f"{words} --device cuda"


def commands(name: str) -> str:
    """The commands at three scales and what they ask for; then the runs that we made."""
    of = experiment(name)
    fetched = sorted(
        {data for scale in SCALES for data in of.datasets.get(scale, "").split(", ")} - {"", "digits"}
    )
    words = [f"nap data fetch {' '.join(fetched)}"] if fetched else []
    words += [command(name, scale) for scale in SCALES]
    lines = ["| Scale | Runs | Seeds | Data |", "|---|---|---|---|"]
    for scale in SCALES:
        config = of.scales[scale]
        data = of.datasets.get(scale, "") or getattr(config, "data", "none to fetch")
        lines.append(f"| {scale} | {len(of.runs(config))} | {config.seeds} | {data} |")
    done = [f"- {described(name, record)}" for record in records_of(name)]
    heading = "Run by us (claims that hold / fail / are open):" if done else "Not run by us yet."
    return "\n".join(["```", *words, "```", "", *lines, "", heading, "", *done])


def described(name: str, record: Record) -> str:
    """A record as an item of a list."""
    seeds = "1 seed" if record.seeds == 1 else f"{record.seeds} seeds"
    typed = ", ".join(f"`{words}`" for words in record.commands)
    took = f", {record.duration}" if record.duration else ""
    note = f" {record.note.rstrip('.')}." if record.note else ""
    return (
        f"**{record.scale}: {counted(name, record)}.** {record.setting}; {seeds}, {record.device}, "
        f"{record.date}{took}.{note} {typed}"
    )


def verdicts(name: str) -> str:
    """Claims and figures of an experiment, from all rows that nothing has superseded."""
    texts = [archive(record.name, name) for record in records_of(name) if record.archive]
    return "\n\n".join(texts) or (
        "There are no rows of this experiment in `evidence/` yet, so no claim is decided here. "
        "`nap run` prints the verdicts on your own runs, and `nap report` draws them."
    )


def archive(packed: str, name: str = "") -> str:
    """Claims and figures from one archive, of one experiment or of all that read its rows."""
    (record,) = [record for record in records() if record.name == packed]
    texts = []
    for part in parts(packed):
        if name and part.experiment.name != name:
            continue
        place = f"{part.experiment.name}-in-{packed}"
        _html[place] = partial(_drawn, part, place)
        missing = part.missing
        lacks = f"\n\nNo rows for: {' · '.join(missing)}." if missing else ""
        texts.append(
            f"### {packed}: {record.setting}\n\n{summary(part.results)} Decided on the rows in "
            f"`evidence/{packed}.tar.xz` when this page was built. To decide them again in a clone: "
            f"`tar xf evidence/{packed}.tar.xz && nap claims {packed}`.{lacks}\n\n"
            f'<div data-place="{place}"></div>'
        )
    return "\n\n".join(texts)


def figure(packed: str) -> str:
    """The first figure of the rows of an archive."""
    part = parts(packed)[0]
    place = f"first-figure-of-{packed}"
    _html[place] = lambda: f'<div class="from-rows">{figure_html(replace(part.figures[0], name=place))}</div>'
    return f'<div data-place="{place}"></div>'


def _drawn(part: Part, place: str) -> str:
    figures = [replace(figure, name=f"{place}-{figure.name}") for figure in part.figures]
    html = [claims_table(part.results), *([part.table] if part.table else []), *map(figure_html, figures)]
    return '<div class="from-rows" data-search-exclude>' + "\n".join(html) + "</div>"


def rates(packed: str) -> str:
    """The plot of result against learning rate, and the range of rates that works for each arm."""
    (record,) = [record for record in records() if record.name == packed]
    assert record.archive is not None, f"{packed} has no rows in evidence/"
    with unpacked(record.archive) as folder:
        (tuning,) = sensitivity.find(folder)
    place = f"rates-in-{packed}"
    drawn = f"{figure_html(sensitivity.figure(tuning, place))}{sensitivity.ranges(tuning) or ''}"
    _html[place] = lambda: f'<div class="from-rows" data-search-exclude>{drawn}</div>'
    return f'<div data-place="{place}"></div>'


def overview(_: str) -> str:
    """One line an experiment: what the paper shows with it, and the verdicts so far."""
    lines = ["| Experiment | What the paper shows with it | Hold / fail / open |", "|---|---|---|"]
    for name in MODULES:
        came_out = [f"{record.scale}: {counted(name, record)}" for record in records_of(name)]
        cell = "<br>".join(came_out) or "no result yet"
        lines.append(f"| [`{name}`]({name}.md) | {experiment(name).shows} | {cell} |")
    return "\n".join(lines)


def ranges(packed: str) -> str:
    """The range of each measure over tasks and seeds, for each arm."""
    rows = parts(packed)[0].group.rows
    measured = {column: column.replace("_", " ") for column in MEASURES if rows.unique(column)}
    lines = [f"| Arm | {' | '.join(measured.values())} |", "|---" * (len(measured) + 1) + "|"]
    for arm in rows.unique("arm"):
        cells = []
        for column in measured:
            values = [row[column] for row in rows.where(arm=arm) if row.get(column) is not None]
            ends = dict.fromkeys((number(min(values), 2), number(max(values), 2))) if values else {}
            cells.append(" to ".join(ends) or "–")
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary_table(_: str) -> str:
    """Verdicts on all rows that nothing has superseded; then the claims that fail, by rows."""
    lines, fails = ["| Rows | Seeds | Hold / fail / open |", "|---|---|---|"], []
    for record in records():
        for part in parts(record.name) if record.current and record.archive else ():
            if not part.results:
                continue
            count = counts(part.results)
            failed = dict.fromkeys(
                claim.statement for claim, evidence in part.results if evidence.verdict == FAILS
            )
            page = f"[{part.experiment.name}](reproduce/{part.experiment.name}.md), `{record.name}`"
            numbers = f"{NO_BREAK}/{NO_BREAK}".join(str(count[verdict]) for verdict in (HOLDS, FAILS, OPEN))
            lines.append(f"| {page} | {record.seeds} | {numbers} |")
            fails += [f"- {page}: {' '.join(failed)}"] if failed else []
    return "\n".join([*lines, "", "What fails:", "", *fails])


def all_records(_: str) -> str:
    return verdict_table(ROOT / "docs/log")


ASKED = {
    "archive": archive,
    "commands": commands,
    "figure": figure,
    "overview": overview,
    "ranges": ranges,
    "rates": rates,
    "records": all_records,
    "summary": summary_table,
    "verdicts": verdicts,
}


def live(match: re.Match[str]) -> str:
    """The figure drawn from the rows, in place of its picture, which is for readers of the repository."""
    drawn = any(record.name == match[1] and record.archive for record in records())
    return figure(match[1]) if drawn else match[0]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    markdown = PICTURE.sub(live, markdown)
    return MARKER.sub(lambda match: ASKED[match[1]](match[2]), markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    return re.sub(r'<div data-place="([\w-]+)"></div>', lambda match: _html[match[1]](), html)
