"""Figure 2, coupled networks: how far the projected twin strays from its free one, by way of rescaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nap.lab.report.panels import Figure, Measure, Panel, panel
from nap.lab.report.style import BLUE, DASHED, GREEN, GREY, ORANGE, PURPLE, Look, looks
from nap.lab.rows import Rows

MODES = {
    "exact": Look(GREEN, width=2.2),
    "per layer": Look(BLUE),
    "global": Look(ORANGE),
    "none": Look(PURPLE),
}
GAPS = (
    Measure("loss_gap", "Loss gap"),
    Measure("accuracy_gap", "Accuracy gap"),
    Measure("function_distance", "Function distance"),
)
FREE = Look(GREY, DASHED, 1.6)


def figures(rows: Rows) -> list[Figure]:
    """Three distances between the twins, and on the right the learning curves of both."""
    sizes = Rows(
        {**row, **{m.key: abs(row[m.key]) for m in GAPS if row.get(m.key) is not None}} for row in rows
    )
    arms = {mode: (look, {"arm": mode}) for mode, look in looks(MODES, rows.unique("arm")).items()}
    gaps = [panel(sizes, measure, arms, x="step") for measure in GAPS]
    gaps[1] = replace(gaps[1], fraction=not gaps[1].log)
    return [
        Figure(
            "fig2",
            [*gaps, _learning_curves(rows, arms)],
            columns=4,
            caption="Both twins see the same batches; only one is projected. Lines: how its learning rates "
            "follow the other's. Gaps are absolute values. Grey: the free twin.",
        )
    ]


def missing(rows: Rows) -> list[str]:
    """Ways of rescaling that have no rows."""
    return [mode for mode in MODES if mode not in rows.unique("arm")]


def _learning_curves(rows: Rows, arms: Mapping[str, tuple[Look, dict[str, Any]]]) -> Panel:
    title = "Accuracy of both twins"
    projected = panel(rows, Measure("accuracy_projected", title, fraction=True), arms, x="step")
    free = panel(rows, Measure("accuracy_free", title, fraction=True), arms, x="step")
    if _all_alike([line.curve.y for line in free.lines]):
        lines = [replace(line, label="free twin", look=FREE) for line in free.lines[:1]]
    else:
        lines = [
            replace(line, label=f"free twin, {line.label}", look=replace(line.look, dash=DASHED))
            for line in free.lines
        ]
    return replace(projected, lines=[*projected.lines, *lines])


def _all_alike(curves: list[np.ndarray]) -> bool:
    """Whether the free twin walks the same path whatever its projected twin does, as it should."""
    return all(len(y) == len(curves[0]) and np.allclose(y, curves[0], atol=1e-3) for y in curves)
