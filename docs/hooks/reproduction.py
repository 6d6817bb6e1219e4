"""MkDocs hook: what the reproduction pages say of results comes from PAPER.md and evidence/ at each build.

A page asks for it in a comment on a line of its own:

    <!-- lab: commands fig1 -->       how to run it at three scales, and what was run
    <!-- lab: findings Figure 1 -->   the sections of PAPER.md, Evidence, whose heading matches
    <!-- lab: verdicts fig1 -->       the claims, judged on the rows in evidence/, and the figures
    <!-- lab: ranges fig1-small -->   least and most of each measure, arm by arm, in these rows of evidence/
    <!-- lab: overview -->            all experiments
    <!-- lab: summary -->             the verdicts on all rows in evidence/, and what fails

So nothing on these pages can differ from the rows.
"""

from __future__ import annotations

import re
import tarfile
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from nap.lab.claims import Verdict
from nap.lab.claims.printed import summary
from nap.lab.experiments import MODULES, experiments
from nap.lab.experiments.experiment import Experiment
from nap.lab.report.facts import find_groups
from nap.lab.report.figure_html import figure_html
from nap.lab.report.sections import Part, parts_of
from nap.lab.report.style import number
from nap.lab.report.verdicts import claims_table, counts

ROOT = Path(__file__).resolve().parents[2]
MARKER = re.compile(r"^<!-- lab: (\w+) ?(.*?) -->$", re.MULTILINE)
SCALES = ("demo", "small", "paper")
ARCHIVE = re.compile(rf"-({'|'.join(SCALES)})\.tar\.xz$")
NAME = re.compile(
    rf"\b({'|'.join(sorted(MODULES, key=len, reverse=True))})(?:(?:-(\w+))?-({'|'.join(SCALES)}))?(?![\w-])"
)  # fig1, fig1-small, or a variant of it: induction-sines-paper
LEADING_SCALES = re.compile(rf"(?:{'|'.join(SCALES)})(?:, (?:{'|'.join(SCALES)}))*\b")
MEASURES = (
    *("dead_units", "linearized_units", "dormant_units", "feature_rank"),
    *("parameter_norm", "gradient_norm", "jacobian_norm"),
)
WITHOUT_DEVICE = {"walk"}  # random walks on a CPU at every scale

HOLDS, FAILS, UNCLEAR = Verdict.HOLDS, Verdict.FAILS, Verdict.UNCLEAR
_html: dict[str, str] = {}  # place in a page → what goes there, after Markdown has become HTML


@dataclass(frozen=True)
class Stated:
    """A row of the table under "Evidence" in PAPER.md."""

    names: tuple[str, ...]
    scales: tuple[str, ...]
    variant: str  # of the settings, if any
    setting: str
    command: str
    verdicts: str  # hold / fail / open, or nothing


@cache
def evidence_of_the_paper_page() -> str:
    """PAPER.md from "## Evidence" to the next heading of that rank."""
    text = (ROOT / "PAPER.md").read_text("utf-8")
    found = re.search(r"^## Evidence$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, "PAPER.md has no section Evidence"
    return found[1]


@cache
def stated_rows() -> tuple[Stated, ...]:
    """The rows of the table, with the experiments and scales that each is about; variants come last."""
    rows = []
    for line in re.findall(r"^\|(.*)\|$", evidence_of_the_paper_page().split("\n### ")[0], re.MULTILINE):
        cells = [cell.strip() for cell in line.split("|")]
        names = NAME.findall(cells[0])
        if len(cells) != 4 or not names:
            continue
        suffixes = tuple(dict.fromkeys(scale for _, _, scale in names if scale))
        leading = LEADING_SCALES.match(cells[1])
        scales = suffixes or tuple(leading[0].split(", ") if leading else ())
        rows.append(Stated(tuple(name for name, _, _ in names), scales, names[0][1], *cells[1:]))
    return tuple(sorted(rows, key=lambda row: row.variant != ""))


@cache
def experiment(name: str) -> Experiment:
    return experiments([name])[name]


@cache
def companions(name: str) -> frozenset[str]:
    """The experiments that read the same runs, this one among them."""
    of = experiments()
    return frozenset(other for other in of if of[other].folder == of[name].folder)


def rows_about(name: str) -> list[Stated]:
    return [row for row in stated_rows() if companions(name) & {*row.names}]


def variant_in(archive: str) -> str:
    """What the rows of an archive are a variant by; nothing where the settings are the experiment's own."""
    named = NAME.match(archive.partition(".")[0])
    return named[2] if named and named[2] else ""


def counted(name: str, row: Stated) -> str:
    """Hold / fail / open; where other experiments judge the same runs, with their claims."""
    others = " and ".join(f"`{other}`" for other in sorted(companions(name) - {name}))
    return f"{row.verdicts} (with {others})" if others and row.verdicts else row.verdicts


@cache
def judged() -> tuple[tuple[str, Part], ...]:
    """Every archive's name with each experiment that its rows speak of; variants come last."""
    found = []
    archives = (ROOT / "evidence").glob("*.tar.xz")
    for archive in sorted(archives, key=lambda path: (variant_in(path.name) != "", path.name)):
        if ARCHIVE.search(archive.name):
            with tempfile.TemporaryDirectory() as folder:
                with tarfile.open(archive) as packed:
                    packed.extractall(folder, filter="data")
                found += [(archive.name, part) for part in parts_of(find_groups(Path(folder)))]
    return tuple(found)


def command(name: str, scale: str) -> str:
    """The words that run it."""
    words = f"nap run {name}" if scale == "demo" else f"nap run {name} --scale {scale}"
    return words if scale == "demo" or name in WITHOUT_DEVICE else f"{words} --device cuda"


def commands(name: str) -> str:
    """The commands at three scales; then what was run, as PAPER.md has it, and what was not."""
    of = experiment(name)
    fetched = sorted({data for scale in SCALES for data in of.needs[scale].split(", ")} - {"", "digits"})
    words = [f"nap data fetch {' '.join(fetched)}"] if fetched else []
    words += [command(name, scale) for scale in SCALES]
    lines = [
        "| Scale | Asks for | Run by us: setting, command, date, duration | Hold / fail / open |",
        "|---|---|---|---|",
    ]
    for scale in SCALES:
        config = of.scales[scale]
        data = of.needs[scale] or getattr(config, "data", "none to fetch")
        asks = f"{len(of.runs(config))} runs, {config.seeds} seeds; data: {data}"
        rows = [row for row in stated_rows() if name in row.names and scale in row.scales]
        for row in rows:
            done = row.command if row.command.startswith("**") else f"{row.setting}: {row.command}"
            lines.append(f"| {scale} | {asks} | {done} | {counted(name, row) or '–'} |")
        if not rows:
            lines.append(f"| {scale} | {asks} | no result written down yet | – |")
    return "```\n" + "\n".join(words) + "\n```\n\n" + "\n".join(lines)


def findings(pattern: str) -> str:
    """The sections whose heading matches, with links as seen from this page."""
    sections = re.split(r"^### ", evidence_of_the_paper_page(), flags=re.MULTILINE)[1:]
    chosen = [text for text in sections if re.search(pattern, text.partition("\n")[0])]
    if not chosen:
        return "Nothing is written down yet: what was run is in the table above."
    drawn = re.compile(r"^!\[[^\]]*\]\([^)]*\)$\n?", re.MULTILINE)  # the figures are drawn anew, below
    text = "\n".join(f"### {drawn.sub('', section).strip()}\n" for section in chosen)
    return re.sub(r"\]\((?!https?:|#)", "](../../", text)


def verdicts(name: str) -> str:
    """Claims and figures from the rows in evidence/, scale by scale."""
    parts = [(archive, part) for archive, part in judged() if part.experiment.name == name]
    if not parts:
        return (
            "There are no rows of this experiment in `evidence/` yet, so nothing can be judged here. "
            "`nap run` prints the verdicts on your own runs, and `nap report` draws them."
        )
    texts = []
    for archive, part in parts:
        scale, packed = part.group.scale, archive.partition(".")[0]
        place = f"{name}-in-{packed}"
        variant = f" ({found})" if (found := variant_in(archive)) else ""
        again = f"tar xf evidence/{archive} && nap claims {packed}"
        _html[place] = _drawn(part, place)
        missing = part.missing
        lacks = f"\n\nNo rows for: {' · '.join(missing)}." if missing else ""
        texts.append(
            f"### Verdicts at scale {scale}{variant}\n\n{summary(part.results)} Decided on the rows in "
            f"`evidence/{archive}` when this page was built; in a clone, `{again}` decides them again."
            f"{lacks}\n\n"
            f'<div data-place="{place}"></div>'
        )
    return "\n\n".join(texts)


def _drawn(part: Part, place: str) -> str:
    figures = [replace(figure, name=f"{place}-{figure.name}") for figure in part.figures]
    html = [claims_table(part.results), *([part.table] if part.table else []), *map(figure_html, figures)]
    return '<div class="from-rows" data-search-exclude>' + "\n".join(html) + "</div>"


def overview(_: str) -> str:
    """One line an experiment: what the paper shows with it, and the verdicts so far."""
    lines = ["| Experiment | What the paper shows with it | Hold / fail / open |", "|---|---|---|"]
    for name in MODULES:
        rows = [row for row in rows_about(name) if row.verdicts]
        found = "<br>".join(
            f"{', '.join(row.scales)}{f' ({row.variant})' if row.variant else ''}: {counted(name, row)}"
            for row in rows
        )
        lines.append(f"| [`{name}`]({name}.md) | {experiment(name).shows} | {found or 'no result yet'} |")
    return "\n".join(lines)


def ranges(archive: str) -> str:
    """From least to most over tasks and seeds, for each arm."""
    rows = next(part for name, part in judged() if name == f"{archive}.tar.xz").group.rows
    measured = {column: column.replace("_", " ") for column in MEASURES if rows.unique(column)}
    lines = [f"| Arm | {' | '.join(measured.values())} |", "|---" * (len(measured) + 1) + "|"]
    for arm in rows.unique("arm"):
        cells = []
        for column in measured:
            found = [row[column] for row in rows.where(arm=arm) if row.get(column) is not None]
            ends = dict.fromkeys((number(min(found), 2), number(max(found), 2))) if found else {}
            cells.append(" to ".join(ends) or "–")
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines)


def summary_table(_: str) -> str:
    """Verdicts on all rows in evidence/: one line for each archive and experiment; what fails is named."""
    lines = ["| Rows | Seeds | Hold / fail / open | What fails |", "|---|---|---|---|"]
    for archive, part in judged():
        if not part.results:
            continue
        name, found = archive.partition(".")[0], counts(part.results)
        failed = dict.fromkeys(claim.says for claim, evidence in part.results if evidence.verdict == FAILS)
        seeds = len(part.group.rows.unique("seed"))
        page = f"[{part.experiment.name}](reproduce/{part.experiment.name}.md), `{name}`"
        numbers = " / ".join(str(found[verdict]) for verdict in (HOLDS, FAILS, UNCLEAR))
        lines.append(f"| {page} | {seeds} | {numbers} | {' '.join(failed) or '–'} |")
    return "\n".join(lines)


ASKED = {
    "summary": summary_table,
    "ranges": ranges,
    "commands": commands,
    "findings": findings,
    "verdicts": verdicts,
    "overview": overview,
}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return MARKER.sub(lambda match: ASKED[match[1]](match[2]), markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    return re.sub(r'<div data-place="([\w-]+)"></div>', lambda match: _html[match[1]], html)
