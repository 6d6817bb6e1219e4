"""What a diagnosis says: values to print, to test and to save."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["critical", "warning", "note"]
ORDER: tuple[Severity, ...] = ("critical", "warning", "note")
_WIDTH = 100


@dataclass(frozen=True)
class Finding:
    """One likely reason, with the measure behind it and what to try."""

    name: str
    severity: Severity
    where: str  # weights, layers or norms, by name; "" for the whole run
    measure: str  # the number, its limit, and since when
    advice: str

    def __str__(self) -> str:
        title = f"{self.severity}: {self.name}" + (f" ({self.where})" if self.where else "")
        said = [("measured", self.measure), ("to try", self.advice)]
        return "\n".join([title, *(_wrapped(f"{label:>10}  ", text) for label, text in said)])


@dataclass(frozen=True)
class Diagnosis:
    """The findings, the checks that were not possible, and all measures; `print` it to read it."""

    findings: tuple[Finding, ...] = ()
    not_looked_at: Mapping[str, str] = field(default_factory=dict)  # check → what it would need
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def healthy(self) -> bool:
        """Whether nothing worse than a note was found."""
        return all(finding.severity == "note" for finding in self.findings)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the findings, the worst first."""
        return tuple(finding.name for finding in self.findings)

    def __str__(self) -> str:
        verdict = f"{len(self.findings)} likely reason{'s' if len(self.findings) != 1 else ''} found."
        parts = [str(finding) for finding in self.findings] or ["Nothing found that stops learning."]
        lines = ["\n\n".join([*parts, verdict] if self.findings else parts)]
        return "\n".join([*lines, *(["", self.skipped()] if self.not_looked_at else [])])

    def skipped(self) -> str:
        """The checks that were not possible, grouped by what they need."""
        reasons: dict[str, list[str]] = {}
        for check, why in self.not_looked_at.items():
            reasons.setdefault(why, []).append(check)
        listed = (_wrapped("  - ", f"{', '.join(checks)}: {why}") for why, checks in reasons.items())
        return "\n".join(["Not looked at:", *listed]) if reasons else ""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; numbers that are not finite become null."""
        return {
            "healthy": self.healthy,
            "findings": [asdict(finding) for finding in self.findings],
            "not_looked_at": dict(self.not_looked_at),
            "numbers": {k: v if math.isfinite(v) else None for k, v in self.numbers.items()},
        }


def _wrapped(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
