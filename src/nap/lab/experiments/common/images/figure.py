"""Image classifiers: how they learn, and a table of where they end, beside the paper's."""

from __future__ import annotations

import numpy as np

from nap.lab.experiments.common.images.claims import ImageTable
from nap.lab.experiments.experiment import arm_names
from nap.lab.loops.supervised.settings import BASELINE, NAP, NORM_ONLY, TRANSLATED
from nap.lab.report.markup import Html, element, join, table
from nap.lab.report.panels import Figure, Measure, arms_of, lacking, panel
from nap.lab.report.style import BLUE, DASHED, GREEN, VERMILION, Look
from nap.lab.rows import Rows

LOOKS = {
    BASELINE.name: Look(VERMILION),
    NORM_ONLY.name: Look(BLUE),
    NAP.name: Look(GREEN, width=2.2),
    TRANSLATED.name: Look(GREEN, DASHED),
}
LEARNING = (
    Measure("test_accuracy", "Test accuracy", fraction=True),
    Measure("accuracy", "Training accuracy", fraction=True),
    Measure("parameter_norm", "Parameter norm"),
    Measure("effective_rate", "Effective learning rate"),
)


def figures(rows: Rows) -> list[Figure]:
    """Accuracies, norms and rates over the updates."""
    panels = [panel(rows, measure, arms_of(rows, LOOKS), x="step") for measure in LEARNING]
    caption = (
        "Effective rate: geometric mean over the weights that a norm follows; it has the schedule in it."
    )
    return [Figure("vision", panels, columns=4, caption=caption)]


def accuracies(rows: Rows, stated: ImageTable) -> Html | None:
    """Test accuracy after the last update, ours and the paper's."""
    last = max((row["step"] for row in rows), default=0)
    body = []
    for arm in dict.fromkeys([*stated.stated, *rows.unique("arm")]):
        if found := rows.where(arm=arm, step=last).values("test_accuracy"):
            theirs = f"{stated.stated[arm]:.2f} ({stated.std[arm]:.2f})" if arm in stated.stated else "–"
            body.append([arm, _cell(100 * np.array(found, float)), theirs])
    if not body:
        return None
    images = ", ".join(str(name) for name in rows.unique("data"))
    caption = (
        f"Test accuracy in per cent after {last:,} updates on {images}, mean over seeds, in brackets the "
        f"standard deviation. The paper's are of {stated.images}."
    )
    made = table(["arm", "here", "in the paper"], body, label="test accuracy", class_="wide")
    return join(made, element("p", caption, class_="quiet"))


def missing(rows: Rows) -> list[str]:
    """Arms of the paper that have no rows."""
    return lacking(rows, arm_names((BASELINE, NORM_ONLY, NAP)))


def _cell(values: np.ndarray) -> str:
    return f"{values.mean():.2f}" + (f" ({values.std(ddof=1):.2f})" if len(values) > 1 else "")
