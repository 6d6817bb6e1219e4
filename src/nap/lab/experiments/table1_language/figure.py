"""A language model: learning curves, and a table of its evaluation."""

from __future__ import annotations

import numpy as np

from nap.lab.experiments.common.sequences.figure import STYLES
from nap.lab.experiments.experiment import arm_names
from nap.lab.experiments.table1_language import ARMS
from nap.lab.report.markup import Html, element, join
from nap.lab.report.markup import table as html_table
from nap.lab.report.panels import Figure, Measure, arms_of, panel
from nap.lab.report.style import mean_and_std
from nap.lab.rows import Rows

EXPECTED_ARMS = arm_names(ARMS[:3])
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
    panels = [panel(rows, measure, arms_of(rows, STYLES), x="step") for measure in LEARNING]
    caption = (
        "Accuracy: share of tokens predicted right before an update. Effective rate: geometric mean over the "
        "weights that a norm follows, schedule included."
    )
    return [Figure("language", panels, columns=4, caption=caption)]


def table(rows: Rows) -> Html | None:
    """Results on every eval set: a line for each set and metric, a column for each arm."""
    rows = rows.where(kind="evaluation")
    arms = [arm for arm in STYLES if arm in rows.unique("arm")]
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


def _cell(rows: Rows, metric: str) -> str:
    values = np.array([value for value in rows.values(metric) if value is not None], float)
    return mean_and_std(values if metric == "loss" else 100 * values)
