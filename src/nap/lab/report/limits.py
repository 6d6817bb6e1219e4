"""The y range of a panel: all curves in view, noise not blown up, wide bands cut before they rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nap.lab.report.panels import Panel

PAD = 0.06  # of the range, free above and below
MOST_BAND = 0.5  # of the range that a band may add on either side
LEAST_SPAN_OF_A_FRACTION = 0.04
LEAST_SPAN = 0.1  # of the level: a norm that stays within a tenth shall look flat
LEAST_LOG_SPAN = 0.3  # decades


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
