"""Verdicts as a table for a terminal, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any

from nap.lab.claims.claim import Evidence, Verdict, number
from nap.lab.claims.verdicts import Result

MARKS = {Verdict.HOLDS: "✓", Verdict.FAILS: "✗", Verdict.UNCLEAR: "?"}
SAYS, EFFECT, NEEDS, SEEDS = 48, 31, 13, 5  # columns; 100 with the gaps between them


def table(results: Sequence[Result]) -> str:
    """The verdicts in 100 columns of plain text: ✓ holds, ✗ fails, ? not enough evidence."""
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
    return "\n".join([*lines, summary(results)])


def summary(results: Iterable[Result]) -> str:
    """How many claims hold, fail and lack evidence.

    >>> summary([])
    '0 claims: 0 hold, 0 fail, 0 without enough evidence.'
    """
    count = Counter(evidence.verdict for _, evidence in results)
    return (
        f"{count.total()} claims: {count[Verdict.HOLDS]} hold, {count[Verdict.FAILS]} fail, "
        f"{count[Verdict.UNCLEAR]} without enough evidence."
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
