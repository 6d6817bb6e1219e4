"""Verdicts: every claim about some rows, tested on them; as a table for a terminal, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from textwrap import wrap
from typing import Any

from nap.lab.claims.claim import Claim, Evidence, Verdict, number
from nap.lab.claims.samples import Samples
from nap.lab.experiments import readers
from nap.lab.experiments.experiment import Experiment
from nap.lab.rows import Row, Rows
from nap.lab.seeds import for_tuning

Result = tuple[Claim, Evidence]
OPTIMIZER = {"reset": "optimizer reset", "keep": "optimizer state kept"}  # at a change of task
MARKS = {Verdict.HOLDS: "✓", Verdict.FAILS: "✗", Verdict.OPEN: "?"}
STATEMENT, EFFECT, REGION, SEEDS = 48, 31, 13, 5  # widths of columns; 100 with the gaps between them
RIGHT = EFFECT + REGION + SEEDS + 2  # width of the text below the numbers


def evaluate(rows: Rows) -> list[Result]:
    """Every claim about `rows` with its evidence, once for each group that it is tested on.

    The rows of an experiment must be of one scale; `nap.lab.claims.read` keeps folders apart. Rows of tuning
    seeds decide nothing.

    >>> rows = Rows([{"experiment": "walk", "arm": "GD", "seed": 0, "step": 0, "dead": 0.5}])
    >>> claim, evidence = evaluate(rows)[0]
    >>> print(claim.id, "–", evidence.sentence)
    walk.plain-monotone – Not enough evidence: arm “GD” has too few steps for a trend: 1 of at least 4.
    """
    rows = Rows(row for row in rows if not for_tuning(row.get("seed")))
    results: list[Result] = []
    for experiment, name in _experiments_about(rows):
        groups: dict[tuple[str, ...], dict[tuple[Any, ...], Samples]] = {}
        for claim in experiment.claims:
            if claim.group_by not in groups:
                groups[claim.group_by] = _grouped(rows.where(experiment=name), claim.group_by)
            for values, samples in groups[claim.group_by].items():
                named = dict(zip(claim.group_by, values, strict=True))
                if all(named.get(key, value) == value for key, value in claim.applies_to.items()):
                    subject = ", ".join(
                        _label(key, value) for key, value in named.items() if value is not None
                    )
                    results.append((claim, replace(claim.evaluate(samples), subject=subject)))
    return results


def _label(column: str, value: Any) -> str:
    """A value of a column in words.

    >>> _label("network", "mlp"), _label("optimizer_state", "reset")
    ('mlp', 'optimizer reset')
    """
    return OPTIMIZER.get(value, str(value)) if column == "optimizer_state" else str(value)


def _experiments_about(rows: Rows) -> list[tuple[Experiment, str]]:
    """The experiments with claims about some of these rows, in order, each with its name in the rows."""
    pairs = [(reader, str(name)) for name in rows.unique("experiment") for reader in readers(str(name))]
    return sorted(pairs, key=lambda pair: (pair[0].order, pair[0].name))


def _grouped(rows: Rows, columns: tuple[str, ...]) -> dict[tuple[Any, ...], Samples]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in columns), []).append(row)
    return {values: Samples(Rows(group)) for values, group in groups.items()}


def table(results: Sequence[Result]) -> str:
    """The verdicts in 100 columns of plain text: ✓ holds, ✗ fails, ? open."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for claim, evidence in results:
        groups.setdefault((claim.experiment, evidence.subject), []).append((claim, evidence))
    lines = []
    for (experiment, subject), group in groups.items():
        title = f"{experiment}: {subject}" if subject else experiment
        lines += [_line(title, "effect [95 % interval]", "requires", "seeds"), "─" * 100]
        for claim, evidence in group:
            lines += _entry(f"{claim.statement} ({claim.source})", evidence)
        lines.append("")
    if any("Holm" in case.reason for _, evidence in results for case in evidence.cases.values()):
        lines.append("Cases of one claim are corrected for their number (Holm), so some of them stay open.")
    return "\n".join([*lines, summary(results)])


def summary(results: Iterable[Result]) -> str:
    """How many claims hold, fail and are open.

    >>> summary([])
    '0 claims: 0 hold, 0 fail, 0 open.'
    """
    count = Counter(evidence.verdict for _, evidence in results)
    return (
        f"{count.total()} claim{'s' * (count.total() != 1)}: {count[Verdict.HOLDS]} hold, "
        f"{count[Verdict.FAILS]} fail, {count[Verdict.OPEN]} open."
    )


def to_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One object for each verdict."""
    return [
        {"id": claim.id, "experiment": claim.experiment, "says": claim.statement, "where": claim.source}
        | evidence.to_json()
        for claim, evidence in results
    ]


def _entry(statement: str, evidence: Evidence) -> Iterator[str]:
    left = wrap(statement, STATEMENT, initial_indent=f"{MARKS[evidence.verdict]} ", subsequent_indent="  ")
    if evidence.effect is None:
        right = wrap(evidence.reason, RIGHT)
    else:
        numbers = _line("", _effect(evidence), str(evidence.region or ""), str(evidence.seeds or ""))
        right = [numbers[STATEMENT + 1 :], *wrap(f"{evidence.quantity} ({evidence.unit})", RIGHT)]
        right += wrap(evidence.reason, RIGHT) if evidence.low is None else []
    for a, b in zip_longest(left, right, fillvalue=""):
        yield f"{a:{STATEMENT}} {b}".rstrip()
    for name, case in evidence.cases.items():
        yield _line(f"    {MARKS[case.verdict]} {name}", _effect(case), str(case.region), str(case.seeds))


def _effect(evidence: Evidence) -> str:
    if evidence.low is None or evidence.high is None:
        return evidence.estimate
    return f"{evidence.estimate} [{number(evidence.low)}, {number(evidence.high)}]"


def _line(statement: str, effect: str, region: str, seeds: str) -> str:
    return f"{statement:{STATEMENT}} {effect:{EFFECT}} {region:>{REGION}} {seeds:>{SEEDS}}".rstrip()
