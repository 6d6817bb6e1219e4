"""A language model: how it learns, and a table of its evaluation."""

from __future__ import annotations

import numpy as np

from nap.lab.experiments.common.sequences.figure import LOOKS
from nap.lab.experiments.experiment import arm_names
from nap.lab.experiments.table1_language import ARMS
from nap.lab.report.markup import Html, element, join
from nap.lab.report.markup import table as html_table
from nap.lab.report.panels import Figure, Measure, arms_of, lacking, panel
from nap.lab.rows import Rows

LEARNING = (
    Measure("accuracy", "Training accuracy", fraction=True),
    Measure("valid_loss", "Loss on held-out documents"),
    Measure("parameter_norm", "Parameter norm"),
    Measure("effective_rate", "Effective learning rate"),
)
RESULTS = {
    "accuracy": "per token",
    "loss": "loss per token",
    "answer_accuracy": "answered",
    "answer_accuracy_by_byte": "answered, by byte",
}


def figures(rows: Rows) -> list[Figure]:
    """Accuracy, loss, norms and rates over the updates."""
    rows = rows.where(kind=None)
    panels = [panel(rows, measure, arms_of(rows, LOOKS), x="step") for measure in LEARNING]
    caption = (
        "Accuracy: share of tokens predicted right before an update. Effective rate: geometric mean over the "
        "weights that a norm follows; warm-up and cosine are in it."
    )
    return [Figure("language", panels, columns=4, caption=caption)]


def table(rows: Rows) -> Html | None:
    """Accuracy on every eval set: a line for each set and way to count, a column for each arm."""
    rows = rows.where(kind="evaluation")
    arms = [arm for arm in LOOKS if arm in rows.unique("arm")]
    body = [
        [f"{name}, {words}", *(_cell(rows.where(eval_set=name, arm=arm), key) for arm in arms)]
        for name in rows.unique("eval_set")
        for key, words in RESULTS.items()
        if rows.where(eval_set=name).unique(key)
    ]
    if not body:
        return None
    caption = (
        "Per cent (losses in nats), mean over seeds, in brackets the standard deviation. Per token: the "
        "model's first choice is the right token, given all before it; of questions, tokens of the right "
        "answer. Answered: the last word of a passage is written right (LAMBADA), or the right answer is the "
        "likeliest; by byte, the likeliest for its length."
    )
    return join(
        html_table(["eval set", *arms], body, label="evaluation", class_="wide"),
        element("p", caption, class_="quiet"),
    )


def missing(rows: Rows) -> list[str]:
    """Arms that have no rows."""
    return lacking(rows, arm_names(ARMS[:3]))


def _cell(rows: Rows, key: str) -> str:
    times = 1 if key == "loss" else 100
    values = times * np.array([value for value in rows.values(key) if value is not None], float)
    if not len(values):
        return "–"
    spread = f" ({values.std(ddof=1):.2f})" if len(values) > 1 else ""
    return f"{values.mean():.2f}{spread}"
