"""Claims and their verdicts as HTML: a headline count, and a table that becomes cards on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from nap.lab.claims import Claim, Evidence, Result, Verdict
from nap.lab.report.markup import Html, element, join
from nap.lab.report.style import number

SIGNS = {Verdict.HOLDS: ("✓", "holds"), Verdict.FAILS: ("✗", "fails"), Verdict.OPEN: ("?", "open")}
RULE = (
    "A claim holds where all of the 95 % interval over seeds lies inside what the claim needs, and fails "
    "where none of it does. In between, or with fewer than three seeds, it is open. The "
    "cases of one claim are corrected for their number (Holm)."
)
HEADS = ("Verdict", "Claim", "Effect", "95 % interval", "Needs", "Seeds")


def counts(results: Sequence[Result]) -> dict[Verdict, int]:
    """How many claims got each verdict."""
    return {verdict: sum(evidence.verdict == verdict for _, evidence in results) for verdict in SIGNS}


def headline(results: Sequence[Result]) -> Html:
    """How many claims hold, in large type, with a bar of all verdicts."""
    found = counts(results)
    bar = [
        element("span", class_=f"part {SIGNS[verdict][1]}", style=f"flex-grow:{n}")
        for verdict, n in found.items()
        if n
    ]
    fail, undecided = found[Verdict.FAILS], found[Verdict.OPEN]
    words = f"{fail} fail{'s' * (fail == 1)} · {undecided} open"
    grouped = any(evidence.subject for _, evidence in results)
    return element(
        "div",
        element(
            "p",
            element("strong", f"{found[Verdict.HOLDS]} of {len(results)}"),
            " claims hold",
            class_="count",
        ),
        element("div", *bar, class_="bar", aria_hidden="true"),
        element("p", words + (", each network and stream counted" if grouped else ""), class_="quiet"),
        element("p", RULE, class_="quiet"),
        class_="headline",
    )


def claims_table(results: Sequence[Result]) -> Html:
    """One line a claim; one more for each network and stream where it was judged on several."""
    grouped: dict[str, list[Result]] = {}
    for claim, evidence in results:
        grouped.setdefault(claim.id, []).append((claim, evidence))
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in HEADS)))
    lines = [line for group in grouped.values() for line in _lines(group[0][0], [e for _, e in group])]
    inner = element("table", head, element("tbody", *lines), class_="claims")
    return element(
        "div", inner, class_="scroll", tabindex="0", role="region", aria_label="claims and verdicts"
    )


def badge(verdict: Verdict) -> Html:
    """A verdict as sign, word and colour."""
    sign, word = SIGNS[verdict]
    return element("span", f"{sign} {word}", class_=f"badge {word}")


def _lines(claim: Claim, found: list[Evidence]) -> list[Html]:
    statement = element("span", claim.statement, class_="says")
    if len(found) == 1:
        about = _quiet(claim.source, found[0].subject, found[0].quantity)
        return [_line(found[0], join(statement, about, *_rest(found[0])))]
    hold = f"{counts([(claim, one) for one in found])[Verdict.HOLDS]} of {len(found)} hold"
    common = found[0].quantity if len({one.quantity for one in found}) == 1 else ""
    top = element(
        "tr",
        element("td", element("span", hold, class_="badge plain")),
        element(
            "td", join(statement, _quiet(claim.source, common)), data_head="Claim", colspan=len(HEADS) - 1
        ),
        class_="top",
    )
    below = [
        _line(one, join(one.subject, None if common else _quiet(one.quantity), *_rest(one)), class_="below")
        for one in found
    ]
    return [top, *below]


def _line(evidence: Evidence, statement: Html, class_: str | None = None) -> Html:
    numbers = (_effect(evidence), _interval(evidence), _needs(evidence), str(evidence.seeds or "–"))
    return element(
        "tr",
        element("td", badge(evidence.verdict)),
        _cell("Claim", statement),
        *(_cell(head, text) for head, text in zip(HEADS[2:], numbers, strict=True)),
        class_=class_,
    )


def _rest(evidence: Evidence) -> list[Html]:
    """What is missing, and the cases that the verdict sums up."""
    cases = [
        f"{SIGNS[case.verdict][0]}\u00a0{name} {number(case.effect)}" for name, case in evidence.cases.items()
    ]
    lacks = [element("span", evidence.reason, class_="lacks")] if evidence.reason else []
    return [*lacks, *([_quiet(*cases)] if cases else [])]


def _quiet(*texts: str) -> Html:
    return element("span", " · ".join(text for text in texts if text), class_="quiet")


def _effect(evidence: Evidence) -> str:
    if evidence.effect is None:
        return "–"
    value = number(evidence.effect)
    return f"× {value}" if evidence.unit == "ratio" else f"{value} {evidence.unit}".strip()


def _interval(evidence: Evidence) -> str:
    return "–" if evidence.low is None else f"{number(evidence.low)} to {number(evidence.high)}"


def _needs(evidence: Evidence) -> str:
    region = evidence.region
    if region is None:
        return "–"
    if isfinite(region.low) and isfinite(region.high):
        return f"{number(region.low)} to {number(region.high)}"
    return f"> {number(region.low)}" if isfinite(region.low) else f"< {number(region.high)}"


def _cell(head: str, content: str) -> Html:
    return element("td", content, data_head=head, class_="nothing" if content == "–" else None)
