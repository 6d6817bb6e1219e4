"""Figure 1, the case study: accuracy, parameter norm, gradient norm and Jacobian norm, task after task."""

from __future__ import annotations

from nap.lab.experiments.experiment import arm_names
from nap.lab.experiments.fig1 import AFFINE_ARMS, PAPERS_ARMS
from nap.lab.report import style
from nap.lab.report.panels import Figure, Measure, arms_of, panel
from nap.lab.report.style import LineStyle
from nap.lab.rows import Rows

NO_NORM, LAYER_NORM, RESCALED, NAP, FRESH, FRESH_NO_NORM = EXPECTED_ARMS = arm_names(PAPERS_ARMS)
FREE, JOINT, WEAK_PULL, PULL, NO_AFFINE = arm_names(AFFINE_ARMS)
FRESH_STYLES = {
    FRESH: LineStyle(style.BLACK, style.DOTTED, 1.4),
    FRESH_NO_NORM: LineStyle(style.VERMILION, style.DOTTED, 1.4),
}
STYLES = {
    NO_NORM: style.BASELINE,
    LAYER_NORM: style.NORM,
    RESCALED: LineStyle(style.SKY, style.DASHED),
    NAP: style.NAP,
    FREE: LineStyle(style.GREEN, style.DASHED),
    JOINT: LineStyle(style.PURPLE, style.DASHED),
    WEAK_PULL: LineStyle(style.ORANGE, style.DASHED),
    PULL: LineStyle(style.ORANGE),
    NO_AFFINE: LineStyle(style.GREY, style.DASHED),
    **FRESH_STYLES,
}
LABELS = {FRESH: "fresh initialisation", FRESH_NO_NORM: "fresh initialisation, no norm"}
RESCALED_GROWS = (
    "The arm that is rescaled at each task resets its weights, not the scales and offsets of its norms; "
    "these make its parameter norm grow."
)
MEASURES = (
    Measure("accuracy", "Online accuracy", fraction=True),
    Measure("parameter_norm", "Parameter norm"),
    Measure("gradient_norm", "Gradient norm"),
    Measure("jacobian_norm", "Jacobian norm"),
)


def figures(rows: Rows) -> list[Figure]:
    """The four panels of the figure, side by side."""
    trained = Rows(row for row in rows if row.get("arm") not in FRESH_STYLES)
    fresh = Rows(row for row in rows if row.get("arm") in FRESH_STYLES)
    arms, references = arms_of(trained, STYLES), arms_of(fresh, STYLES, labels=LABELS)
    panels = [panel(rows, measure, arms, references=references) for measure in MEASURES]
    dotted = "Dotted: a fresh network on each task, mean over the tasks." if fresh else ""
    rescaled = RESCALED_GROWS if RESCALED in rows.unique("arm") else ""
    caption = " ".join(filter(None, ["Each task has new random labels.", dotted, rescaled]))
    return [Figure("fig1", panels, columns=4, caption=caption)]
