"""Transformers on strings: memorising over data sets, copying over steps."""

from __future__ import annotations

from nap.lab.report.panels import Figure, Measure, panel
from nap.lab.report.style import (
    BLACK,
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Look,
    looks,
)
from nap.lab.rows import Rows

ARMS = {
    "baseline": Look(VERMILION),
    "projection only": Look(ORANGE),
    "norm only": Look(BLUE),
    "NaP": Look(GREEN, width=2.2),
    "NaP, no scale": Look(GREEN, DASHED),
    "norm only, RMSNorm": Look(BLUE, DOTTED),
    "NaP, RMSNorm": Look(GREEN, DOTTED),
    "weight decay 0.01": Look(SKY, DASHED),
    "weight decay 0.1": Look(PURPLE, DASHED),
    "weight decay 1": Look(BLACK, DASHED),
}
STRINGS = ("baseline", "norm only", "NaP", "NaP, no scale")
INDUCTION = ("baseline", "projection only", "norm only", "NaP", "NaP, no scale")
MEMORISING = (
    Measure("accuracy", "Online accuracy", fraction=True),
    Measure("parameter_norm", "Parameter norm"),
    Measure("gradient_norm", "Gradient norm"),
    Measure("effective_rate", "Effective learning rate"),
)
COPYING = (
    Measure("retrieval", "Copying", fraction=True),
    Measure("unseen", "Copying, unseen strings", fraction=True),
    Measure("memorisation", "Memorising", fraction=True),
    Measure("parameter_norm", "Parameter norm"),
)


def strings(rows: Rows) -> list[Figure]:
    """Accuracy and norms, data set after data set."""
    rows = rows.where(kind=None)
    panels = [panel(rows, measure, _arms(rows)) for measure in MEMORISING]
    caption = (
        "A task is a new set of random strings. Accuracy: share of tokens predicted right before an update, "
        "mean over the task. Effective rate: geometric mean over the weights that a norm follows."
    )
    return [Figure("strings", panels, columns=4, caption=caption)]


def induction(rows: Rows) -> list[Figure]:
    """Accuracy on the copy, in training and beyond it, and on what can only be learnt by heart."""
    made = []
    for number, form in enumerate(rows.unique("form")):
        here = rows.where(form=form)
        panels = [panel(here, measure, _arms(here), x="step") for measure in COPYING]
        count, _, lengths = str(form).rpartition("x")
        prefix, _, suffix = lengths.partition("+")
        strings = f"{int(count):,} strings of " if count else ""
        caption = (
            f"{strings}{prefix} random tokens, then {suffix} that copy a piece of them. Copying: accuracy on "
            "all but the first two of those. Memorising: accuracy on the random tokens."
        )
        made.append(Figure(f"induction-{number}", panels, columns=4, caption=caption))
    return made


def missing_strings(rows: Rows) -> list[str]:
    """Arms that have no rows."""
    return [arm for arm in STRINGS if arm not in rows.unique("arm")]


def missing_induction(rows: Rows) -> list[str]:
    """Arms that have no rows, by form."""
    return [
        f"{form}: {arm}"
        for form in rows.unique("form")
        for arm in INDUCTION
        if arm not in rows.where(form=form).unique("arm")
    ]


def _arms(rows: Rows) -> dict[str, tuple[Look, dict[str, str]]]:
    return {arm: (look, {"arm": arm}) for arm, look in looks(ARMS, rows.unique("arm")).items()}
