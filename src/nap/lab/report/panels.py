"""Figures before they are drawn: panels with curves, reference levels and marks, and one legend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nap.lab.report.curves import Curve, curve
from nap.lab.report.style import LineStyle, styles_for
from nap.lab.rows import Rows

Arms = Mapping[
    str, tuple[LineStyle, Mapping[str, Any]]
]  # label → its style, and what its rows have in common
LOG_FROM = 15.0  # largest over smallest value: from here a linear axis would hide the small ones
PADDING = 0.06  # of the range, above and below
MAX_BAND = 0.5  # of the range that a band may add on either side
MIN_FRACTION_SPAN = 0.04
MIN_SPAN = 0.1  # of the level: a norm that stays within a tenth should look flat
MIN_LOG_SPAN = 0.3  # decades
AXIS_LABELS = {"step": "training step", "frames": "environment frames"}  # column → label of the x axis


@dataclass(frozen=True)
class Measure:
    """A column of the rows, and how it is drawn."""

    key: str
    label: str
    fraction: bool = False  # shown in per cent, never on a log axis
    linear: bool = False  # never on a log axis


@dataclass(frozen=True)
class Line:
    """A curve with its label and style."""

    label: str
    style: LineStyle
    curve: Curve


@dataclass(frozen=True)
class Reference:
    """A horizontal reference line across the panel."""

    label: str
    style: LineStyle
    y: float


@dataclass(frozen=True)
class Panel:
    """One pair of axes. A panel without lines shows only its `note`, which says what is missing."""

    title: str
    x_label: str
    y_label: str = ""
    lines: Sequence[Line] = ()
    references: Sequence[Reference] = ()
    marks: Sequence[float] = ()
    log: bool = False
    zero: float = 0.0  # where a log axis shows zero; 0 without zeros
    fraction: bool = False
    limits: tuple[float, float] | None = None
    x_log: bool = False
    shade_below_zero: bool = False
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """Panels in the paper's layout."""

    name: str
    panels: Sequence[Panel]
    columns: int  # panels side by side, where there is room
    caption: str
    title: str = ""
    folded: bool = False  # opens with a click
    plain: bool = False  # no means over seeds, no legend

    @property
    def legend(self) -> dict[str, LineStyle]:
        """Label → style, references last."""
        lines = {line.label: line.style for panel in self.panels for line in panel.lines}
        levels = {level.label: level.style for panel in self.panels for level in panel.references}
        return lines | levels

    @property
    def seeds(self) -> list[int]:
        """The numbers of seeds of its curves, each once."""
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
    """A panel of `measure` over the column `x` with one line for each arm.

    The y axis is logarithmic if the values of `axis_of` (by default of `rows`) span decades.

    >>> rows = Rows({"arm": "NaP", "seed": s, "task": t, "loss": 0.1 * t} for s in (0, 1) for t in (1, 2))
    >>> made = panel(rows, Measure("loss", "Loss"), {"NaP": (LineStyle("#000"), {"arm": "NaP"})})
    >>> made.title, [line.label for line in made.lines], made.lines[0].curve.y
    ('Loss', ['NaP'], array([0.1, 0.2]))
    """
    axis_of = rows if axis_of is None else axis_of
    log = spans_decades(axis_of, measure)
    zero = zero_level(axis_of, measure.key) if log else 0.0
    lines, missing = [], []
    for label, (style, where) in arms.items():
        values, _, positions = rows.where(**where).matrix(measure.key, by=("seed", x))
        drawn = curve(
            values,
            np.array(positions),
            log=log,
            zero=zero,
            fraction=measure.fraction,
            smooth=x == "task",  # tasks are noisy; over steps, sudden events matter
        )
        if len(drawn.x):
            lines.append(Line(label, style, drawn))
        else:
            missing.append(label)
    levels = []
    for label, (style, where) in (references or {}).items():
        level = _level(rows.where(**where), measure.key, log, zero)
        if not math.isnan(level):
            levels.append(Reference(label, style, level))
    return Panel(
        title=measure.label if title is None else title,
        x_label=AXIS_LABELS.get(x, x),
        lines=lines,
        references=levels,
        log=log,
        zero=zero,
        fraction=measure.fraction,
        note=_note(measure, x, missing, some=bool(lines)),
        **more,
    )


def arms_of(
    rows: Rows, known: Mapping[str, LineStyle], *, key: str = "arm", labels: Mapping[str, str] | None = None
) -> Arms:
    """The arms that have rows, for `panel`: those with a known style first, in their order.

    >>> styles = {"NaP": LineStyle("#000"), "none": LineStyle("#111")}
    >>> arms_of(Rows([{"arm": "mine"}, {"arm": "NaP"}]), styles).keys()
    dict_keys(['NaP', 'mine'])
    """
    styles = styles_for(known, rows.unique(key))
    return {(labels or {}).get(arm, arm): (style, {key: arm}) for arm, style in styles.items()}


def arms_without_rows(rows: Rows, expected: Iterable[str], *, by: str = "") -> list[str]:
    """The expected arms that have no rows; with `by`, for each value of that column.

    >>> rows = Rows([{"game": "pong", "arm": "NaP"}, {"game": "boxing", "arm": "Rainbow"}])
    >>> arms_without_rows(rows, ["NaP", "mine"]), arms_without_rows(rows, ["NaP"], by="game")
    (['mine'], ['boxing: NaP'])
    """
    if not by:
        present = rows.unique("arm")
        return [arm for arm in expected if arm not in present]
    expected = list(expected)
    return [
        f"{value}: {arm}"
        for value in rows.unique(by)
        for arm in arms_without_rows(rows.where(**{by: value}), expected)
    ]


def spans_decades(rows: Rows, measure: Measure) -> bool:
    """Whether a metric is never negative and so wide in range that only a log axis shows it."""
    values = _numbers(rows, measure.key)
    positive = values[values > 0]
    if measure.fraction or measure.linear or not len(positive) or (values < 0).any():
        return False
    return bool(positive.max() / positive.min() >= LOG_FROM)


def zero_level(rows: Rows, key: str) -> float:
    """Where a log axis shows zero: well below the smallest positive value; 0 without zeros.

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
    return f"Not measured for {', '.join(missing)}." if missing else ""


def share_y_axis(panels: Sequence[Panel]) -> list[Panel]:
    """The panels with the same limits of their y axes."""
    with_lines = [limits(one) for one in panels if one.lines]
    if not with_lines:
        return list(panels)
    common = min(low for low, _ in with_lines), max(high for _, high in with_lines)
    return [replace(one, limits=common) for one in panels]


def limits(panel: Panel) -> tuple[float, float]:
    """The limits of the y axis of a panel that has lines."""
    if panel.limits is not None:
        return panel.limits
    means = _scaled(
        panel, [line.curve.y for line in panel.lines] + [np.array([r.y for r in panel.references])]
    )
    bands = _scaled(panel, [end for line in panel.lines for end in (line.curve.low, line.curve.high)])
    bottom, top = float(means.min()), float(means.max())
    if len(bands):
        room = max(MAX_BAND * (top - bottom), 0.5 * _min_span(panel, top))
        bottom = min(bottom, max(float(bands.min()), bottom - room))
        top = max(top, min(float(bands.max()), top + room))
    widening = max(0.0, _min_span(panel, top) - (top - bottom)) / 2
    pad = widening + PADDING * (top - bottom)
    low, high = bottom - pad, top + pad
    if panel.log:
        return 10.0**low, 10.0**high
    below_zero = -low - PADDING * (high - low)
    if bottom >= 0 and below_zero > 0:  # a quantity that is never negative gets no negative axis
        low, high = low + below_zero, high + below_zero
    return (low, min(high, 1.02)) if panel.fraction else (low, high)


def _scaled(panel: Panel, parts: Sequence[np.ndarray]) -> np.ndarray:
    """All finite numbers in `parts`, as logarithms on a log axis."""
    values = np.concatenate(parts)
    values = values[~np.isnan(values)]
    return np.log10(values[values > 0]) if panel.log else values


def _min_span(panel: Panel, level: float) -> float:
    if panel.log:
        return MIN_LOG_SPAN
    return MIN_FRACTION_SPAN if panel.fraction else MIN_SPAN * abs(level) or 1.0
