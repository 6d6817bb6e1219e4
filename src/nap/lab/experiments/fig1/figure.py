"""Figure 1, the case study: accuracy, parameter norm, gradient norm and Jacobian norm, task after task."""

from __future__ import annotations

from nap.lab.report.panels import Figure, Measure, panel
from nap.lab.report.style import (
    BLACK,
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Look,
    looks,
)
from nap.lab.rows import Rows

ARMS = {
    "no norm": Look(VERMILION),
    "LayerNorm": Look(BLUE),
    "LayerNorm, rescaled each task": Look(SKY, DASHED),
    "NaP": Look(GREEN, width=2.2),
}
VARIANTS = {  # of NaP: other rules for scales and offsets
    "NaP, affine free": Look(GREEN, DASHED),
    "NaP, affine joint": Look(PURPLE, DASHED),
    "NaP, affine pulled 1e-4": Look(ORANGE, DASHED),
    "NaP, affine pulled 1e-3": Look(ORANGE),
    "NaP, no affine": Look(GREY, DASHED),
}
FRESH = {"fresh": Look(BLACK, DOTTED, 1.4), "fresh, no norm": Look(VERMILION, DOTTED, 1.4)}
FRESH_WORDS = {"fresh": "fresh initialisation", "fresh, no norm": "fresh initialisation, no norm"}
MEASURES = (
    Measure("accuracy", "Online accuracy", fraction=True),
    Measure("parameter_norm", "Parameter norm"),
    Measure("gradient_norm", "Gradient norm"),
    Measure("jacobian_norm", "Jacobian norm"),
)


def figures(rows: Rows) -> list[Figure]:
    """The four panels of the figure, side by side."""
    present = [arm for arm in rows.unique("arm") if arm not in FRESH]
    arms = {arm: (look, {"arm": arm}) for arm, look in looks(ARMS | VARIANTS, present).items()}
    fresh = {FRESH_WORDS[arm]: (look, {"arm": arm}) for arm, look in FRESH.items()}
    panels = [panel(rows, measure, arms, references=fresh) for measure in MEASURES]
    some = any(one.references for one in panels)
    dotted = "Dotted: a fresh network on the same tasks, mean over them." if some else ""
    return [
        Figure(
            "fig1",
            panels,
            columns=4,
            caption=f"Each task has new random labels. {dotted}".strip(),
        )
    ]


def missing(rows: Rows) -> list[str]:
    """Arms of the paper's figure that have no rows."""
    present = rows.unique("arm")
    return [arm for arm in (*ARMS, *FRESH) if arm not in present]
