"""Figure 1, the case study: accuracy, parameter norm, gradient norm and Jacobian norm, task after task."""

from __future__ import annotations

from nap.lab.loops.population.settings import (
    FRESH,
    FRESH_NO_NORM,
    LAYER_NORM,
    NAP,
    NAP_FREE,
    NAP_JOINT,
    NAP_NO_AFFINE,
    NAP_PULL,
    NAP_WEAK_PULL,
    NO_NORM,
    RESCALED,
)
from nap.lab.report.panels import Figure, Measure, arms_of, lacking, panel
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
)
from nap.lab.rows import Rows

PAPERS_LOOKS = {
    NO_NORM.name: Look(VERMILION),
    LAYER_NORM.name: Look(BLUE),
    RESCALED.name: Look(SKY, DASHED),
    NAP.name: Look(GREEN, width=2.2),
}
FRESH_LOOKS = {FRESH.name: Look(BLACK, DOTTED, 1.4), FRESH_NO_NORM.name: Look(VERMILION, DOTTED, 1.4)}
LOOKS = {
    **PAPERS_LOOKS,
    NAP_FREE.name: Look(GREEN, DASHED),
    NAP_JOINT.name: Look(PURPLE, DASHED),
    NAP_WEAK_PULL.name: Look(ORANGE, DASHED),
    NAP_PULL.name: Look(ORANGE),
    NAP_NO_AFFINE.name: Look(GREY, DASHED),
    **FRESH_LOOKS,
}
WORDS = {FRESH.name: "fresh initialisation", FRESH_NO_NORM.name: "fresh initialisation, no norm"}
RESCALED_GROWS = (
    "In the arm that is rescaled at each task the weights are put back, and not the scales and offsets of "
    "norms: these make its parameter norm grow."
)
MEASURES = (
    Measure("accuracy", "Online accuracy", fraction=True),
    Measure("parameter_norm", "Parameter norm"),
    Measure("gradient_norm", "Gradient norm"),
    Measure("jacobian_norm", "Jacobian norm"),
)


def figures(rows: Rows) -> list[Figure]:
    """The four panels of the figure, side by side."""
    trained = Rows(row for row in rows if row.get("arm") not in FRESH_LOOKS)
    arms, fresh = arms_of(trained, LOOKS), arms_of(rows, FRESH_LOOKS, words=WORDS)
    fresh = {words: fresh[words] for words in WORDS.values() if words in fresh}
    panels = [panel(rows, measure, arms, references=fresh) for measure in MEASURES]
    some = any(one.references for one in panels)
    dotted = "Dotted: a fresh network on the same tasks, mean over them." if some else ""
    rescaled = RESCALED_GROWS if RESCALED.name in rows.unique("arm") else ""
    return [
        Figure(
            "fig1",
            panels,
            columns=4,
            caption=" ".join(filter(None, ["Each task has new random labels.", dotted, rescaled])),
        )
    ]


def missing(rows: Rows) -> list[str]:
    """Arms of the paper's figure that have no rows."""
    return lacking(rows, (*PAPERS_LOOKS, *FRESH_LOOKS))
