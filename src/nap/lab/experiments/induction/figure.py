"""Copied strings: accuracy on the copy and on what can only be learnt by heart, over steps."""

from __future__ import annotations

from nap.lab.experiments.common.sequences.figure import STYLES
from nap.lab.experiments.induction import PAPERS_ARMS
from nap.lab.report.panels import Figure, Measure, arms_of, panel
from nap.lab.rows import Rows

EXPECTED_ARMS = PAPERS_ARMS
EXPECTED_BY = "form"
COPYING = (
    Measure("retrieval", "Copying", fraction=True),
    Measure("unseen", "Copying, unseen strings", fraction=True),
    Measure("memorisation", "Memorising", fraction=True),
    Measure("parameter_norm", "Parameter norm"),
)


def figures(rows: Rows) -> list[Figure]:
    """Accuracy on the copy, in training and beyond it, and on what can only be learnt by heart."""
    made = []
    for number, form in enumerate(rows.unique("form")):
        of_form = rows.where(form=form)
        panels = [panel(of_form, measure, arms_of(of_form, STYLES), x="step") for measure in COPYING]
        count, _, lengths = str(form).rpartition("x")
        prefix, _, suffix = lengths.partition("+")
        strings = f"{int(count):,} strings of " if count else ""
        caption = (
            f"{strings}{prefix} random tokens, then {suffix} that copy a piece of them. Copying: accuracy on "
            "all but the first two of those. Memorising: accuracy on the random tokens."
        )
        made.append(Figure(f"induction-{number}", panels, columns=4, caption=caption))
    return made
