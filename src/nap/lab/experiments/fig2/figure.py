"""Figure 2, coupled networks: a free network and its projected twins, by the way their rates follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nap.lab.report.panels import Arms, Figure, Line, Measure, Panel, arms_of, lacking, panel, share_limits
from nap.lab.report.style import BLUE, DASHED, GREEN, ORANGE, PALE, PURPLE, Look
from nap.lab.rows import Rows

LOOKS = {
    "exact": Look(GREEN, width=2.2),
    "per layer": Look(BLUE),
    "global": Look(ORANGE),
    "none": Look(PURPLE),
}
PAPER = {
    "per layer": "Loss, rates rescaled per layer",
    "global": "Loss, rates rescaled globally",
    "none": "Loss, rates not rescaled",
}
WORDS = {"none": "not rescaled"}
GAPS = (
    Measure("loss_gap", "Gap in loss"),
    Measure("accuracy_gap", "Gap in accuracy, in points"),
    Measure("function_distance", "Distance between functions"),
)
GROWTH = Measure("norm_growth", "Growth of the free weights")
FREE = Look(PALE, width=5.0)


def figures(rows: Rows) -> list[Figure]:
    """The paper's four panels, and below them how far apart the twins are."""
    arms = arms_of(rows, LOOKS, words=WORDS)
    twins = [
        _both(rows, {WORDS.get(mode, mode): (LOOKS[mode], {"arm": mode})}, "loss", title=title)
        for mode, title in PAPER.items()
    ]
    unit = {"accuracy_gap": 100.0}
    sizes = Rows(
        {**row, **{m.key: unit.get(m.key, 1.0) * abs(row[m.key]) for m in GAPS if row.get(m.key) is not None}}
        for row in rows
    )
    gaps = [panel(sizes, measure, arms, x="step") for measure in GAPS]
    growth = panel(rows, GROWTH, {"free twin": (FREE, next(iter(arms.values()), (FREE, {}))[1])}, x="step")
    return [
        Figure(
            "fig2",
            [
                *share_limits(twins),
                _both(rows, arms, "accuracy", fraction=True, title="Accuracy of all twins"),
            ],
            columns=4,
            caption="Both twins see the same batches; one is projected after every step, and its learning "
            "rates follow the other's as the title says. “exact” rescales its gradients, too: what it "
            "takes with Adam. Loss and accuracy are those of training.",
        ),
        Figure(
            "fig2-gaps",
            [*gaps, growth],
            columns=4,
            title="How far the twins are apart",
            caption="Absolute differences; distance: ‖f(x) − f̃(x)‖/‖f(x)‖ on a probe batch. Growth: the "
            "norm of the free twin's weights against its start, which is what the rates follow.",
        ),
    ]


def missing(rows: Rows) -> list[str]:
    """Ways of rescaling that have no rows."""
    return lacking(rows, LOOKS)


def _both(rows: Rows, arms: Arms, metric: str, *, title: str, fraction: bool = False) -> Panel:
    """Learning curves of the projected twins over those of the free ones, on one axis."""
    ends = ("projected", "free")
    axis_of = Rows({metric: row.get(f"{metric}_{end}")} for row in rows for end in ends)
    either = [
        panel(
            Rows({**row, metric: row.get(f"{metric}_{end}")} for row in rows),
            Measure(metric, title, fraction),
            arms,
            x="step",
            axis_of=axis_of,
        )
        for end in ends
    ]
    projected, free = either
    return replace(projected, lines=[*_free_lines(free.lines), *projected.lines])


def _free_lines(lines: Sequence[Line]) -> list[Line]:
    """One line for all free twins where they walk the same path, as they should; else one for each."""
    if all(
        len(line.curve.y) == len(lines[0].curve.y) and np.allclose(line.curve.y, lines[0].curve.y, rtol=1e-3)
        for line in lines
    ):
        return [replace(line, label="free twin", look=FREE) for line in lines[:1]]
    return [
        replace(line, label=f"free twin, {line.label}", look=replace(line.look, dash=DASHED))
        for line in lines
    ]
