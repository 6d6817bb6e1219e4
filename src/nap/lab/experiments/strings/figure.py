"""Random strings: accuracy and norms, data set after data set."""

from __future__ import annotations

from nap.lab.experiments.common.sequences.figure import STYLES
from nap.lab.experiments.strings import PAPERS_ARMS
from nap.lab.report.panels import Figure, Measure, arms_of, panel
from nap.lab.rows import Rows

EXPECTED_ARMS = PAPERS_ARMS
MEMORISING = (
    Measure("accuracy", "Online accuracy", fraction=True),
    Measure("parameter_norm", "Parameter norm"),
    Measure("gradient_norm", "Gradient norm"),
    Measure("effective_rate", "Effective learning rate"),
)


def figures(rows: Rows) -> list[Figure]:
    """Accuracy and norms, data set after data set."""
    rows = rows.where(kind=None)
    panels = [panel(rows, measure, arms_of(rows, STYLES)) for measure in MEMORISING]
    caption = (
        "A task is a new set of random strings. Accuracy: share of tokens predicted right before an update, "
        "mean over the task. Effective rate: geometric mean over the weights that a norm follows."
    )
    return [Figure("strings", panels, columns=4, caption=caption)]
