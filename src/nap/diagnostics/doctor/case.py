"""What the checks read: measures by name over time, and what is known of a live model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Numbers = Mapping[str, float]
Point = tuple[float | None, float]  # a step, where it is known, and a measure


@dataclass(frozen=True)
class Live:
    """What a live model and its optimizer show besides numbers."""

    head: str = ""  # the weight of the layer that runs last
    tables: frozenset[str] = frozenset()  # look-up tables
    zeros: frozenset[str] = frozenset()  # weights that are all zeros
    has_norms: bool = False
    converted: bool = False
    projected: frozenset[str] = frozenset()
    unreached: tuple[str, ...] = ()  # no gradient comes to them
    untrained: tuple[str, ...] = ()  # no optimizer holds them
    misuse: tuple[str, ...] = ()  # warnings of nap.projection.misuse
    unattached: bool = False  # a Projector was made for the model, and none was attached or called
    unseen: int = 0  # updates of the optimizers, where an attached Projector has seen none
    decayed: tuple[str, ...] = ()  # projected weights under an optimizer's own default weight decay
    updates: int | None = None


@dataclass(frozen=True)
class Case:
    """Measures under the names of `nap.diagnostics.Recorder` (`dead/LAYER`, `rate/WEIGHT`, …), over time."""

    series: Mapping[str, tuple[Point, ...]]
    live: Live | None = None
    missing: Mapping[str, str] = field(default_factory=dict)  # prefix → why there is no such measure
    unit: str = "step"  # what the places in time count

    @classmethod
    def of(
        cls,
        rows: Iterable[tuple[float | None, Numbers]],
        live: Live | None = None,
        missing: Mapping[str, str] | None = None,
        unit: str = "step",
    ) -> Case:
        """From rows of numbers, oldest first."""
        series: dict[str, list[Point]] = {}
        for step, numbers in rows:
            for key, value in numbers.items():
                series.setdefault(key, []).append((step, float(value)))
        return cls({key: tuple(points) for key, points in series.items()}, live, missing or {}, unit)

    def has(self, prefix: str) -> bool:
        """Whether a measure has this prefix."""
        return any(_matches(key, prefix) for key in self.series)

    def now(self, prefix: str) -> dict[str, float]:
        """The latest measures with this prefix, by the rest of their names."""
        return {key[len(prefix) :]: p[-1][1] for key, p in self.series.items() if _matches(key, prefix)}

    def value(self, key: str) -> float | None:
        """The latest measure of this name."""
        return self.series[key][-1][1] if key in self.series else None

    def first(self, key: str) -> float | None:
        """The first measure, if it is older than the latest."""
        points = self.series.get(key, ())
        return points[0][1] if len(points) > 1 else None

    def has_lasted(self, key: str, high: float) -> bool:
        """Whether the measure has been at most `high` for a while: two readings and a tenth of all."""
        points = self.series.get(key, ())
        lasting = next((i for i, (_, value) in enumerate(reversed(points)) if value > high), len(points))
        return lasting >= max(2, len(points) / 10)

    def since(self, key: str, low: float = -math.inf, high: float = math.inf) -> str:
        """In words, since which step the measure has been within these bounds."""
        points = self.series.get(key, ())
        start = None
        for step, value in reversed(points):
            if not low <= value <= high:
                break
            start = step
        return "" if start is None or len(points) < 2 else f", since {self.unit} {start:,.0f}"


def _matches(key: str, prefix: str) -> bool:
    return key.startswith(prefix) if prefix.endswith("/") else key == prefix
