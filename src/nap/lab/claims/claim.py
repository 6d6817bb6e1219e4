"""What a claim is, what counts as evidence for it, and when it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nap.lab.claims.samples import Samples


class Verdict(StrEnum):
    """What the rows say of a claim."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"


class NotEnough(Exception):
    """Rows, arms, seeds or tasks to decide a claim on are missing, and which; `Claim.judge` catches it."""


@dataclass(frozen=True)
class Region:
    """The effects for which a claim holds: the open interval from `low` to `high`.

    >>> str(Region(low=1.5)), str(Region(high=-2)), str(Region(-2, 2))
    ('> 1.5', '< −2', '−2 to 2')
    """

    low: float = -inf
    high: float = inf

    def verdict(self, low: float, high: float) -> Verdict:
        """Holds where all of the interval lies inside, fails where none does."""
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
    """An effect with its interval over seeds, what the claim needs of it, and the verdict."""

    verdict: Verdict
    what: str = ""  # is measured, in words
    unit: str = ""  # of effect, low, high and needs, in words
    effect: float | None = None
    low: float | None = None  # ends of the 95 % interval
    high: float | None = None
    needs: Region | None = None
    seeds: int = 0
    missing: str = ""  # what it would take, where there is not enough evidence
    subject: str = ""  # which of several networks or streams: "mlp, random labels"
    parts: Mapping[str, Evidence] = field(default_factory=dict)  # the cases that an overall verdict sums up
    p_fails: float = 1.0  # one-sided: how likely chance puts the effect so far outside of what is needed
    p_holds: float = 1.0  # and so far inside

    @property
    def sentence(self) -> str:
        """All of it in plain words."""
        if self.effect is None:
            return f"Not enough evidence: {self.missing}."
        spread = "" if self.low is None else f" (95 % interval {self.interval}, {self.seeds} seeds)"
        end = f": {self.missing}" if self.missing else ""
        measured = f"{self.what[:1].upper()}{self.what[1:]}: {number(self.effect)} {self.unit}{spread}"
        return f"{measured}; the claim needs {self.needs}. {str(self.verdict).capitalize()}{end}."

    @property
    def interval(self) -> str:
        """The two ends as text, or nothing."""
        return "" if self.low is None or self.high is None else f"{number(self.low)} to {number(self.high)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; a region's open end is null."""
        bounds = (None, None) if self.needs is None else (self.needs.low, self.needs.high)
        return {
            "verdict": str(self.verdict),
            "subject": self.subject,
            "what": self.what,
            "unit": self.unit,
            "effect": self.effect,
            "low": self.low,
            "high": self.high,
            "holds_above": None if bounds[0] == -inf else bounds[0],
            "holds_below": None if bounds[1] == inf else bounds[1],
            "seeds": self.seeds,
            "missing": self.missing,
            "sentence": self.sentence,
            "parts": {name: part.to_json() for name, part in self.parts.items()},
        }


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, in our words, with the check that decides it on rows."""

    id: str  # "fig1.no-norm-accuracy-falls"
    says: str
    where: str  # section and figure of the paper
    check: Callable[[Samples], Evidence]
    apart: tuple[str, ...] = ()  # keys of rows that are judged apart: a verdict for each network and stream
    only: Mapping[str, str] = field(default_factory=dict)  # the paper says it of these rows alone

    @property
    def experiment(self) -> str:
        """The experiment that the claim is about."""
        return self.id.partition(".")[0]

    def judge(self, samples: Samples) -> Evidence:
        """The evidence of these rows, which may be that there is not enough."""
        try:
            return self.check(samples)
        except NotEnough as reason:
            return Evidence(Verdict.OPEN, missing=str(reason))


def apart(keys: tuple[str, ...], *claims: Claim) -> tuple[Claim, ...]:
    """These claims, with a verdict for each value of these columns where they name none themselves."""
    return tuple(claim if claim.apart else replace(claim, apart=keys) for claim in claims)


def asked_of(claims: Iterable[Claim], experiment: str, where: str) -> tuple[Claim, ...]:
    """Claims about another experiment, asked of this one; of two with one name the first.

    `where` says what the paper said them of.
    """
    asked: dict[str, Claim] = {}
    for claim in claims:
        name = f"{experiment}.{claim.id.partition('.')[2]}"
        asked.setdefault(name, replace(claim, id=name, where=f"{claim.where}; {where}"))
    return tuple(asked.values())


def number(value: float) -> str:
    """Three significant digits, with a proper minus sign.

    >>> number(-41.239), number(1234.0), number(2.1e-9)
    ('−41.2', '1234', '2.1e−09')
    """
    text = f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
    return text.replace("-", "−")
