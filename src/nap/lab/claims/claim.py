"""Claims, the evidence for them, and the rule that makes a verdict of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nap.lab.claims.samples import Samples


class Verdict(StrEnum):
    """The outcome of testing a claim on rows."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"


class NotEnough(Exception):
    """Too few rows, arms, seeds or tasks to test a claim; `Claim.evaluate` turns it into an open verdict."""


@dataclass(frozen=True)
class Region:
    """The effects for which a claim holds: the open interval from `low` to `high`.

    >>> str(Region(low=1.5)), str(Region(high=-2)), str(Region(-2, 2))
    ('> 1.5', '< −2', '−2 to 2')
    """

    low: float = -inf
    high: float = inf

    def verdict(self, low: float, high: float) -> Verdict:
        """Holds if the whole interval lies inside the region, fails if none of it does, else open."""
        if self.low < low and high < self.high:
            return Verdict.HOLDS
        if high <= self.low or self.high <= low:
            return Verdict.FAILS
        return Verdict.OPEN

    def __str__(self) -> str:
        if self.high == inf:
            return f"> {number(self.low)}"
        if self.low == -inf:
            return f"< {number(self.high)}"
        return f"{number(self.low)} to {number(self.high)}"


@dataclass(frozen=True)
class Evidence:
    """An effect with its 95 % interval over seeds, the region in which the claim holds, and the verdict."""

    verdict: Verdict
    quantity: str = ""  # what was measured, in words
    unit: str = ""  # of effect, interval and region
    effect: float | None = None
    low: float | None = None  # ends of the 95 % interval
    high: float | None = None
    region: Region | None = None
    seeds: int = 0
    reason: str = ""  # why the claim is open
    subject: str = ""  # the network, stream or form that was tested: "mlp, random labels"
    cases: Mapping[str, Evidence] = field(default_factory=dict)  # of a claim about several arms or games
    p_fails: float = 1.0  # one-sided p-value against the hypothesis that the claim holds
    p_holds: float = 1.0  # and against the hypothesis that it fails

    @property
    def sentence(self) -> str:
        """The evidence as one sentence."""
        if self.effect is None:
            return f"Not enough evidence: {self.reason}."
        interval = "" if self.low is None else f" (95 % interval {self.interval}, {self.seeds} seeds)"
        end = f": {self.reason}" if self.reason else ""
        measured = f"{self.quantity[:1].upper()}{self.quantity[1:]}: {self.estimate} {self.unit}{interval}"
        return f"{measured}; the claim requires {self.region}. {str(self.verdict).capitalize()}{end}."

    @property
    def estimate(self) -> str:
        """The effect as text; empty without one."""
        return "" if self.effect is None else number(self.effect)

    @property
    def interval(self) -> str:
        """The ends of the interval as text; empty without one."""
        return "" if self.low is None or self.high is None else f"{number(self.low)} to {number(self.high)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; a region's open end is null."""
        bounds = (None, None) if self.region is None else (self.region.low, self.region.high)
        return {
            "verdict": str(self.verdict),
            "subject": self.subject,
            "what": self.quantity,
            "unit": self.unit,
            "effect": self.effect,
            "low": self.low,
            "high": self.high,
            "holds_above": None if bounds[0] == -inf else bounds[0],
            "holds_below": None if bounds[1] == inf else bounds[1],
            "seeds": self.seeds,
            "missing": self.reason,
            "sentence": self.sentence,
            "parts": {name: part.to_json() for name, part in self.cases.items()},
        }


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, in our words, with the function that tests it on rows."""

    id: str  # "fig1.no-norm-accuracy-falls"
    statement: str
    source: str  # section and figure of the paper
    check: Callable[[Samples], Evidence]
    group_by: tuple[str, ...] = ()  # columns: one verdict for each combination of their values
    applies_to: Mapping[str, str] = field(default_factory=dict)  # column → the value that it is about

    @property
    def experiment(self) -> str:
        """The experiment that the claim is about."""
        return self.id.partition(".")[0]

    def evaluate(self, samples: Samples) -> Evidence:
        """The evidence in these rows; open, with the reason, if there is not enough."""
        try:
            return self.check(samples)
        except NotEnough as reason:
            return Evidence(Verdict.OPEN, reason=str(reason))


def grouped(columns: tuple[str, ...], *claims: Claim) -> tuple[Claim, ...]:
    """These claims, each tested for every combination of values of these columns unless it names its own."""
    return tuple(claim if claim.group_by else replace(claim, group_by=columns) for claim in claims)


def restated(claims: Iterable[Claim], experiment: str, note: str) -> tuple[Claim, ...]:
    """The claims of another experiment, tested on this one; `note` says what the paper states them for.

    Of two claims with the same name the first stays.
    """
    found: dict[str, Claim] = {}
    for claim in claims:
        id_ = f"{experiment}.{claim.id.partition('.')[2]}"
        found.setdefault(id_, replace(claim, id=id_, source=f"{claim.source}; {note}"))
    return tuple(found.values())


def number(value: float) -> str:
    """Three significant digits, with a proper minus sign.

    >>> number(-41.239), number(1234.0), number(2.1e-9)
    ('−41.2', '1234', '2.1e−09')
    """
    text = f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
    return text.replace("-", "−")
