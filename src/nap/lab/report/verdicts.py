"""Claims and their verdicts as HTML: a headline count, and a table that becomes cards on a phone."""

from __future__ import annotations

from collections.abc import Sequence

from nap.lab.claims import Claim, Evidence, Result, Verdict
from nap.lab.report.markup import Html, element, join
from nap.lab.report.style import number

SIGNS = {Verdict.HOLDS: ("✓", "holds"), Verdict.FAILS: ("✗", "fails"), Verdict.OPEN: ("?", "open")}
RULE = (
    "A claim holds if the whole 95 % interval over seeds lies in the required region, and fails if none of "
    "it does. Otherwise, or with fewer than three seeds, it is open. Cases of one claim are corrected for "
    "their number (Holm)."
)
HEADS = ("Verdict", "Claim", "Effect", "95 % interval", "Requires", "Seeds")


def counts(results: Sequence[Result]) -> dict[Verdict, int]:
    """The number of claims with each verdict."""
    return {verdict: sum(evidence.verdict == verdict for _, evidence in results) for verdict in SIGNS}


def headline(results: Sequence[Result]) -> Html:
    """How many claims hold, in large type, with a bar of all verdicts."""
    count = counts(results)
    bar = [
        element("span", class_=f"part {SIGNS[verdict][1]}", style=f"flex-grow:{n}")
        for verdict, n in count.items()
        if n
    ]
    fail, undecided = count[Verdict.FAILS], count[Verdict.OPEN]
    repeated = len({claim.id for claim, _ in results}) < len(results)
    note = " · claims are counted once for each network, stream and optimizer treatment" if repeated else ""
    return element(
        "div",
        element(
            "p",
            element("strong", f"{count[Verdict.HOLDS]} of {len(results)}"),
            " claims hold",
            class_="count",
        ),
        element("div", *bar, class_="bar", aria_hidden="true"),
        element("p", f"{fail} fail{'s' * (fail == 1)} · {undecided} open{note}", class_="quiet"),
        element("p", RULE, class_="quiet"),
        class_="headline",
    )


def claims_table(results: Sequence[Result]) -> Html:
    """One line for each claim, and one for each subject of a claim that was tested on several."""
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


def _lines(claim: Claim, evidence: list[Evidence]) -> list[Html]:
    statement = element("span", claim.statement, class_="statement")
    if len(evidence) == 1:
        about = _quiet(claim.source, evidence[0].subject, evidence[0].quantity)
        return [_line(evidence[0], join(statement, about, *_details(evidence[0])))]
    hold = sum(each.verdict is Verdict.HOLDS for each in evidence)
    common = evidence[0].quantity if len({each.quantity for each in evidence}) == 1 else ""
    description = join(statement, _quiet(claim.source, common))
    top = element(
        "tr",
        element("td", element("span", f"{hold} of {len(evidence)} hold", class_="badge plain")),
        element("td", description, data_head="Claim", colspan=len(HEADS) - 1),
        class_="top",
    )
    below = [
        _line(
            each,
            join(each.subject, None if common else _quiet(each.quantity), *_details(each)),
            class_="below",
        )
        for each in evidence
    ]
    return [top, *below]


def _line(evidence: Evidence, description: Html, class_: str | None = None) -> Html:
    interval = "–" if evidence.low is None else f"{number(evidence.low)} to {number(evidence.high)}"
    numbers = (_effect(evidence), interval, str(evidence.region or "–"), str(evidence.seeds or "–"))
    return element(
        "tr",
        element("td", badge(evidence.verdict)),
        _cell("Claim", description),
        *(_cell(head, text) for head, text in zip(HEADS[2:], numbers, strict=True)),
        class_=class_,
    )


def _details(evidence: Evidence) -> list[Html]:
    """Why the claim is open, and the cases that its verdict sums up."""
    cases = [
        f"{SIGNS[case.verdict][0]}\u00a0{name} {number(case.effect)}" for name, case in evidence.cases.items()
    ]
    reasons = [element("span", evidence.reason, class_="reason")] if evidence.reason else []
    return [*reasons, *([_quiet(*cases)] if cases else [])]


def _quiet(*texts: str) -> Html:
    return element("span", " · ".join(text for text in texts if text), class_="quiet")


def _effect(evidence: Evidence) -> str:
    if evidence.effect is None:
        return "–"
    value = number(evidence.effect)
    return f"× {value}" if evidence.unit == "ratio" else f"{value} {evidence.unit}".strip()


def _cell(head: str, content: str) -> Html:
    return element("td", content, data_head=head, class_="nothing" if content == "–" else None)
