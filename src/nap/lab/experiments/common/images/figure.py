"""Image classifiers: learning curves, and a table of final accuracies beside the paper's."""

from __future__ import annotations

import numpy as np

from nap.lab.experiments.common.images.claims import ImageTable
from nap.lab.experiments.experiment import arm_names
from nap.lab.loops.supervised.settings import BASELINE, NAP, NORM_ONLY, TRANSLATED
from nap.lab.report import style
from nap.lab.report.markup import Html, element, join, table
from nap.lab.report.panels import Figure, Measure, arms_of, panel
from nap.lab.rows import Rows

EXPECTED_ARMS = arm_names((BASELINE, NORM_ONLY, NAP))
STYLES = {
    BASELINE.name: style.BASELINE,
    NORM_ONLY.name: style.NORM,
    NAP.name: style.NAP,
    TRANSLATED.name: style.LineStyle(style.GREEN, style.DASHED),
}
LEARNING = (
    Measure("test_accuracy", "Test accuracy", fraction=True),
    Measure("accuracy", "Training accuracy", fraction=True),
    Measure("parameter_norm", "Parameter norm"),
    Measure("effective_rate", "Effective learning rate"),
)


def figures(rows: Rows) -> list[Figure]:
    """Accuracies, norms and rates over the updates."""
    panels = [panel(rows, measure, arms_of(rows, STYLES), x="step") for measure in LEARNING]
    caption = "Effective rate: geometric mean over the weights that a norm follows, schedule included."
    return [Figure("vision", panels, columns=4, caption=caption)]


def accuracies(rows: Rows, stated: ImageTable) -> Html | None:
    """Test accuracy after the last update, ours and the paper's."""
    last = max((row["step"] for row in rows), default=0)
    body = []
    for arm in dict.fromkeys([*stated.stated, *rows.unique("arm")]):
        if values := rows.where(arm=arm, step=last).values("test_accuracy"):
            theirs = f"{stated.stated[arm]:.2f} ({stated.std[arm]:.2f})" if arm in stated.stated else "–"
            body.append([arm, style.mean_and_std(100 * np.array(values, float)), theirs])
    if not body:
        return None
    images = ", ".join(str(name) for name in rows.unique("data"))
    caption = (
        f"Test accuracy in per cent after {last:,} updates on {images}, mean over seeds, in brackets the "
        f"standard deviation. The paper's are for {stated.images}."
    )
    made = table(["arm", "here", "in the paper"], body, label="test accuracy", class_="wide")
    return join(made, element("p", caption, class_="quiet"))
