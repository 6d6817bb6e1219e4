"""Verdicts: every claim about some rows, decided on them; as a table for a terminal, and as JSON."""

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
MARKS = {Verdict.HOLDS: "✓", Verdict.FAILS: "✗", Verdict.OPEN: "?"}
SAYS, EFFECT, NEEDS, SEEDS = 48, 31, 13, 5  # columns; 100 with the gaps between them


def judge(rows: Rows) -> list[Result]:
    """Every claim that `rows` are about with its evidence, once for each network and stream.

    The rows of an experiment must be of one scale; `nap.lab.claims.read` keeps folders apart. Rows of tuning
    seeds decide nothing.

    >>> rows = Rows([{"experiment": "walk", "arm": "GD", "seed": 0, "step": 0, "dead": 0.5}])
    >>> claim, evidence = judge(rows)[0]
    >>> print(claim.id, "–", evidence.sentence)
    walk.plain-monotone – Not enough evidence: arm “GD” has too few steps for a trend: 1 of at least 4.
    """
    rows = Rows(row for row in rows if not for_tuning(row.get("seed")))
    found: list[Result] = []
    for experiment, name in _about(rows):
        groups: dict[tuple[str, ...], dict[tuple[Any, ...], Samples]] = {}
        for claim in experiment.claims:
            if claim.apart not in groups:
                groups[claim.apart] = _apart(rows.where(experiment=name), claim.apart)
            for values, samples in groups[claim.apart].items():
                if all(
                    value == claim.only.get(key, value)
                    for key, value in zip(claim.apart, values, strict=True)
                ):
                    subject = ", ".join(str(value) for value in values if value is not None)
                    found.append((claim, replace(claim.judge(samples), subject=subject)))
    return found


def _about(rows: Rows) -> list[tuple[Experiment, str]]:
    """The experiments that have claims about some of these rows, in order, each with its name in the rows."""
    found = [(reader, str(name)) for name in rows.unique("experiment") for reader in readers(str(name))]
    return sorted(found, key=lambda pair: (pair[0].order, pair[0].name))


def _apart(rows: Rows, keys: tuple[str, ...]) -> dict[tuple[Any, ...], Samples]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return {values: Samples(Rows(group)) for values, group in groups.items()}


def table(results: Sequence[Result]) -> str:
    """The verdicts in 100 columns of plain text: ✓ holds, ✗ fails, ? open."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for claim, evidence in results:
        groups.setdefault((claim.experiment, evidence.subject), []).append((claim, evidence))
    lines = []
    for (experiment, subject), group in groups.items():
        title = f"{experiment}: {subject}" if subject else experiment
        lines += [_line(title, "effect [95 % over seeds]", "needs", "seeds"), "─" * 100]
        for claim, evidence in group:
            lines += _entry(f"{claim.says} ({claim.where})", evidence)
        lines.append("")
    parts = [part for _, evidence in results for part in evidence.parts.values()]
    if any("Holm" in part.missing for part in parts):
        lines.append("Cases of one claim are corrected for their number (Holm), so some of them stay open.")
    return "\n".join([*lines, summary(results)])


def summary(results: Iterable[Result]) -> str:
    """How many claims hold, fail and are open, since there is not enough evidence.

    >>> summary([])
    '0 claims: 0 hold, 0 fail, 0 open.'
    """
    count = Counter(evidence.verdict for _, evidence in results)
    return (
        f"{count.total()} claims: {count[Verdict.HOLDS]} hold, {count[Verdict.FAILS]} fail, "
        f"{count[Verdict.OPEN]} open."
    )


def to_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    """One object a verdict."""
    return [
        {"id": claim.id, "experiment": claim.experiment, "says": claim.says, "where": claim.where}
        | evidence.to_json()
        for claim, evidence in results
    ]


def _entry(says: str, evidence: Evidence) -> Iterator[str]:
    if evidence.effect is None:
        right = wrap(evidence.missing, EFFECT + NEEDS + SEEDS + 2)
    else:
        right = [_effect(evidence), *wrap(evidence.unit, EFFECT)]
        right += wrap(evidence.missing, EFFECT) if evidence.low is None else []
    left = wrap(says, SAYS, initial_indent=f"{MARKS[evidence.verdict]} ", subsequent_indent="  ")
    numbers = [(str(evidence.needs or ""), str(evidence.seeds or ""))]
    for a, b, c in zip_longest(left, right, numbers):
        yield _line(a or "", b or "", *(c or ()))
    for name, part in evidence.parts.items():
        yield _line(f"    {MARKS[part.verdict]} {name}", _effect(part), str(part.needs), str(part.seeds))


def _effect(evidence: Evidence) -> str:
    if evidence.effect is None:
        return ""
    if evidence.low is None or evidence.high is None:
        return number(evidence.effect)
    return f"{number(evidence.effect)} [{number(evidence.low)}, {number(evidence.high)}]"


def _line(says: str, effect: str = "", needs: str = "", seeds: str = "") -> str:
    return f"{says:{SAYS}} {effect:{EFFECT}} {needs:>{NEEDS}} {seeds:>{SEEDS}}".rstrip()
