"""What a figure is before it is drawn: panels with curves, references and marks, and one legend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nap.lab.report.curves import Curve, curve
from nap.lab.report.style import Look, looks
from nap.lab.rows import Rows

Arms = Mapping[str, tuple[Look, Mapping[str, Any]]]  # label → look, and what its rows have in common
LOG_FROM = 15.0  # largest over smallest value: from here a linear axis would hide the small ones
PAD = 0.06  # of the range, free above and below
MOST_BAND = 0.5  # of the range that a band may add on either side
LEAST_SPAN_OF_A_FRACTION = 0.04
LEAST_SPAN = 0.1  # of the level: a norm that stays within a tenth shall look flat
LEAST_LOG_SPAN = 0.3  # decades


@dataclass(frozen=True)
class Measure:
    """A metric of the rows: its key, the words for it, and whether it is a fraction.

    A fraction is never on a log axis, nor is what is `linear`: differences of it are what counts.
    """

    key: str
    words: str
    fraction: bool = False
    linear: bool = False


@dataclass(frozen=True)
class Line:
    """A curve with its name and look."""

    label: str
    look: Look
    curve: Curve


@dataclass(frozen=True)
class Reference:
    """A level to compare with, across the whole panel."""

    label: str
    look: Look
    y: float


@dataclass(frozen=True)
class Panel:
    """One pair of axes. `note` says what is missing, in words; a panel without lines shows only that."""

    title: str
    x_label: str
    y_label: str = ""
    lines: Sequence[Line] = ()
    references: Sequence[Reference] = ()
    marks: Sequence[float] = ()
    log: bool = False
    zero: float = 0.0  # where on a log axis zero is drawn, if there are zeros
    fraction: bool = False
    limits: tuple[float, float] | None = None
    x_log: bool = False
    shade_below_zero: bool = False
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """Panels in the paper's layout, `columns` a line where there is room; `folded` ones wait for a click."""

    name: str
    panels: Sequence[Panel]
    columns: int
    caption: str
    title: str = ""
    folded: bool = False
    plain: bool = False  # no means over seeds in it, and no legend

    @property
    def legend(self) -> dict[str, Look]:
        """Each label once, in order, references last."""
        lines = {line.label: line.look for panel in self.panels for line in panel.lines}
        levels = {level.label: level.look for panel in self.panels for level in panel.references}
        return lines | levels

    @property
    def seeds(self) -> list[int]:
        """The different numbers of seeds behind its curves."""
        return sorted({line.curve.seeds for panel in self.panels for line in panel.lines})


def panel(
    rows: Rows,
    measure: Measure,
    arms: Arms,
    *,
    x: str = "task",
    title: str | None = None,
    axis_of: Rows | None = None,
    references: Arms | None = None,
    **more: Any,
) -> Panel:
    """A panel of `measure` over `x`: one line an arm, which is a look and what its rows have in common.

    Whether the y axis is a log one follows from the values of `axis_of`, else from those of `rows`.

    >>> rows = Rows({"arm": "NaP", "seed": s, "task": t, "loss": 0.1 * t} for s in (0, 1) for t in (1, 2))
    >>> made = panel(rows, Measure("loss", "Loss"), {"NaP": (Look("#000"), {"arm": "NaP"})})
    >>> made.title, [line.label for line in made.lines], made.lines[0].curve.y
    ('Loss', ['NaP'], array([0.1, 0.2]))
    """
    axis_of = rows if axis_of is None else axis_of
    log = spans_decades(axis_of, measure)
    zero = zero_level(axis_of, measure.key) if log else 0.0
    lines, missing = [], []
    for label, (look, having) in arms.items():
        values, _, positions = rows.where(**having).matrix(measure.key, by=("seed", x))
        found = curve(
            values,
            np.array(positions),
            log=log,
            zero=zero,
            fraction=measure.fraction,
            smooth=x == "task",  # between tasks there is noise; between steps there are events
        )
        if len(found.x):
            lines.append(Line(label, look, found))
        else:
            missing.append(label)
    levels = []
    for label, (look, having) in (references or {}).items():
        level = _level(rows.where(**having), measure.key, log, zero)
        if not math.isnan(level):
            levels.append(Reference(label, look, level))
    return Panel(
        title=measure.words if title is None else title,
        x_label=x,
        lines=lines,
        references=levels,
        log=log,
        zero=zero,
        fraction=measure.fraction,
        note=_note(measure, x, missing, some=bool(lines)),
        **more,
    )


def arms_of(
    rows: Rows, known: Mapping[str, Look], *, key: str = "arm", words: Mapping[str, str] | None = None
) -> Arms:
    """The arms that have rows, for `panel`: those with a look of their own first, in their order.

    >>> arms_of(Rows([{"arm": "mine"}, {"arm": "NaP"}]), {"NaP": Look("#000"), "none": Look("#111")}).keys()
    dict_keys(['NaP', 'mine'])
    """
    found = looks(known, rows.unique(key))
    return {(words or {}).get(arm, arm): (look, {key: arm}) for arm, look in found.items()}


def lacking(rows: Rows, wanted: Iterable[str], *, by: str = "") -> list[str]:
    """The arms without rows; with `by`, for each value of that column.

    >>> rows = Rows([{"game": "pong", "arm": "NaP"}, {"game": "boxing", "arm": "Rainbow"}])
    >>> lacking(rows, ["NaP", "mine"]), lacking(rows, ["NaP"], by="game")
    (['mine'], ['boxing: NaP'])
    """
    if not by:
        present = rows.unique("arm")
        return [arm for arm in wanted if arm not in present]
    wanted = list(wanted)
    return [
        f"{value}: {arm}" for value in rows.unique(by) for arm in lacking(rows.where(**{by: value}), wanted)
    ]


def spans_decades(rows: Rows, measure: Measure) -> bool:
    """Whether a metric is never negative and its values are so far apart that only a log axis shows them."""
    values = _numbers(rows, measure.key)
    positive = values[values > 0]
    if measure.fraction or measure.linear or not len(positive) or (values < 0).any():
        return False
    return bool(positive.max() / positive.min() >= LOG_FROM)


def zero_level(rows: Rows, key: str) -> float:
    """Where a log axis shows zero: well below the smallest positive value; 0 if there is no need to.

    >>> zero_level(Rows([{"gap": 0.0}, {"gap": 0.5}]), "gap"), zero_level(Rows([{"gap": 0.5}]), "gap")
    (0.1, 0.0)
    """
    values = _numbers(rows, key)
    return float(values[values > 0].min()) / 5 if (values == 0).any() and (values > 0).any() else 0.0


def _numbers(rows: Rows, key: str) -> np.ndarray:
    return np.array([value for value in rows.values(key) if value is not None], float)


def _level(rows: Rows, key: str, log: bool, zero: float) -> float:
    values = _numbers(rows, key)
    if not len(values):
        return math.nan
    return float(10 ** np.log10(np.maximum(values, zero)).mean() if log else values.mean())


def _note(measure: Measure, x: str, missing: list[str], some: bool) -> str:
    if not some:
        return f"No rows with seed, “{x}” and “{measure.key}” yet."
    return f"No “{measure.key}” for {', '.join(missing)}." if missing else ""


def share_limits(panels: Sequence[Panel]) -> list[Panel]:
    """The same panels on one common y axis."""
    with_lines = [limits(one) for one in panels if one.lines]
    if not with_lines:
        return list(panels)
    common = min(low for low, _ in with_lines), max(high for _, high in with_lines)
    return [replace(one, limits=common) for one in panels]


def limits(panel: Panel) -> tuple[float, float]:
    """Lowest and highest y of a panel that has lines."""
    if panel.limits is not None:
        return panel.limits
    middles = _scaled(
        panel, [line.curve.y for line in panel.lines] + [np.array([r.y for r in panel.references])]
    )
    bands = _scaled(panel, [end for line in panel.lines for end in (line.curve.low, line.curve.high)])
    bottom, top = float(middles.min()), float(middles.max())
    if len(bands):
        room = max(MOST_BAND * (top - bottom), 0.5 * _least_span(panel, top))
        bottom = min(bottom, max(float(bands.min()), bottom - room))
        top = max(top, min(float(bands.max()), top + room))
    lacking = max(0.0, _least_span(panel, top) - (top - bottom)) / 2
    pad = lacking + PAD * (top - bottom)
    low, high = bottom - pad, top + pad
    if panel.log:
        return 10.0**low, 10.0**high
    below_zero = -low - PAD * (high - low)
    if bottom >= 0 and below_zero > 0:  # what is never negative gets no negative axis
        low, high = low + below_zero, high + below_zero
    return (low, min(high, 1.02)) if panel.fraction else (low, high)


def _scaled(panel: Panel, parts: Sequence[np.ndarray]) -> np.ndarray:
    """The numbers among all parts, as logarithms where the axis is."""
    values = np.concatenate(parts)
    values = values[~np.isnan(values)]
    return np.log10(values[values > 0]) if panel.log else values


def _least_span(panel: Panel, level: float) -> float:
    if panel.log:
        return LEAST_LOG_SPAN
    return LEAST_SPAN_OF_A_FRACTION if panel.fraction else LEAST_SPAN * abs(level) or 1.0
