"""Copied strings: accuracy on the copy and on what can only be learnt by heart, over steps."""

from __future__ import annotations

from nap.lab.experiments.common.sequences.figure import LOOKS
from nap.lab.experiments.induction import PAPERS_ARMS
from nap.lab.report.panels import Figure, Measure, arms_of, lacking, panel
from nap.lab.rows import Rows

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
        here = rows.where(form=form)
        panels = [panel(here, measure, arms_of(here, LOOKS), x="step") for measure in COPYING]
        count, _, lengths = str(form).rpartition("x")
        prefix, _, suffix = lengths.partition("+")
        strings = f"{int(count):,} strings of " if count else ""
        caption = (
            f"{strings}{prefix} random tokens, then {suffix} that copy a piece of them. Copying: accuracy on "
            "all but the first two of those. Memorising: accuracy on the random tokens."
        )
        made.append(Figure(f"induction-{number}", panels, columns=4, caption=caption))
    return made


def missing(rows: Rows) -> list[str]:
    """Arms of the paper that have no rows, by form."""
    return lacking(rows, PAPERS_ARMS, by="form")
