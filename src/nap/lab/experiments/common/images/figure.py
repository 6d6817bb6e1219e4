"""Image classifiers: how they learn, and a table of where they end, beside the paper's."""

from __future__ import annotations

from functools import partial

import numpy as np

from nap.lab.experiments.common.images.claims import ImageTable
from nap.lab.experiments.common.sequences import ARMS
from nap.lab.experiments.table1_cifar.claims import CIFAR
from nap.lab.experiments.table1_imagenet.claims import IMAGENET
from nap.lab.report.markup import Html, element, join, table
from nap.lab.report.panels import Figure, Measure, panel
from nap.lab.report.style import DASHED, GREEN, Look, looks
from nap.lab.rows import Rows

LEARNING = (
    Measure("test_accuracy", "Test accuracy", fraction=True),
    Measure("accuracy", "Training accuracy", fraction=True),
    Measure("parameter_norm", "Parameter norm"),
    Measure("effective_rate", "Effective learning rate"),
)


def figures(rows: Rows) -> list[Figure]:
    """Accuracies, norms and rates over the updates."""
    known = ARMS | {"NaP translated": Look(GREEN, DASHED)}
    arms = {arm: (look, {"arm": arm}) for arm, look in looks(known, rows.unique("arm")).items()}
    panels = [panel(rows, measure, arms, x="step") for measure in LEARNING]
    caption = (
        "Effective rate: geometric mean over the weights that a norm follows; it has the schedule in it."
    )
    return [Figure("vision", panels, columns=4, caption=caption)]


def accuracies(stated: ImageTable, rows: Rows) -> Html | None:
    """Test accuracy after the last update, ours and the paper's."""
    last = max((row["step"] for row in rows), default=0)
    body = []
    for arm in dict.fromkeys([*stated.stated, *rows.unique("arm")]):
        if found := rows.where(arm=arm, step=last).values("test_accuracy"):
            theirs = f"{stated.stated[arm]:.2f} ({stated.spread[arm]:.2f})" if arm in stated.stated else "–"
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


cifar, imagenet = partial(accuracies, CIFAR), partial(accuracies, IMAGENET)


def missing(rows: Rows) -> list[str]:
    """Arms that have no rows."""
    return [arm for arm in CIFAR.stated if arm not in rows.unique("arm")]


def _cell(values: np.ndarray) -> str:
    return f"{values.mean():.2f}" + (f" ({values.std(ddof=1):.2f})" if len(values) > 1 else "")
