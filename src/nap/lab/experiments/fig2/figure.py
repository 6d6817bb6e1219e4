"""Figure 2, coupled networks: a free network and its projected twins, by the way their rates follow."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.report import style
from nap.lab.report.panels import Arms, Figure, Measure, Panel, arms_of, panel, share_y_axis
from nap.lab.report.style import LineStyle
from nap.lab.rows import Rows

STYLES = {
    "exact": LineStyle(style.GREEN, width=2.2),
    "per layer": LineStyle(style.BLUE),
    "global": LineStyle(style.ORANGE),
    "none": LineStyle(style.PURPLE),
}
EXPECTED_ARMS = tuple(STYLES)
TITLES = {
    "per layer": "Loss, rates rescaled per layer",
    "global": "Loss, rates rescaled globally",
    "none": "Loss, rates not rescaled",
}
LABELS = {"none": "not rescaled"}
GAPS = (
    Measure("loss_gap", "Gap in loss"),
    Measure("accuracy_gap", "Gap in accuracy (points)"),
    Measure("function_distance", "Distance between functions"),
)
GROWTH = Measure("norm_growth", "Growth of the free weights")
FREE = LineStyle(style.PALE, width=5.0)


def figures(rows: Rows) -> list[Figure]:
    """The paper's four panels, and below them how far apart the twins are."""
    arms = arms_of(rows, STYLES, labels=LABELS)
    losses = [
        _both_twins(rows, {LABELS.get(mode, mode): (STYLES[mode], {"arm": mode})}, Measure("loss", title))
        for mode, title in TITLES.items()
    ]
    accuracy = _both_twins(rows, arms, Measure("accuracy", "Accuracy of all twins", fraction=True))
    scale = {"accuracy_gap": 100.0}  # a fraction in the rows
    sizes = Rows(
        row | {m.key: scale.get(m.key, 1.0) * abs(row[m.key]) for m in GAPS if row.get(m.key) is not None}
        for row in rows
    )
    free_rows = next(iter(arms.values()), (FREE, {}))[1]  # the free twin is the same for every mode
    growth = panel(rows, GROWTH, {"free twin": (FREE, free_rows)}, x="step")
    return [
        Figure(
            "fig2",
            [*share_y_axis(losses), accuracy],
            columns=4,
            caption="Both twins see the same batches; one is projected after every step, and its learning "
            "rates follow the other's as the title says. “exact” rescales its gradients, too: what it "
            "takes with Adam. Loss and accuracy are those of training.",
        ),
        Figure(
            "fig2-gaps",
            [*(panel(sizes, measure, arms, x="step") for measure in GAPS), growth],
            columns=4,
            title="Distance between the twins",
            caption="Absolute differences; distance: ‖f(x) − f̃(x)‖/‖f(x)‖ on a probe batch. Growth: the "
            "norm of the free twin's weights relative to its start, which the rates follow.",
        ),
    ]


def _both_twins(rows: Rows, arms: Arms, measure: Measure) -> Panel:
    """Learning curves of the projected twins over that of the free one, on one axis."""
    free, projected = (
        Rows(row | {measure.key: row.get(f"{measure.key}_{twin}")} for row in rows)
        for twin in ("free", "projected")
    )
    both = Rows([*projected, *free])
    over, under = (panel(each, measure, arms, x="step", axis_of=both) for each in (projected, free))
    line = [replace(line, label="free twin", style=FREE) for line in under.lines[:1]]
    return replace(over, lines=[*line, *over.lines])
