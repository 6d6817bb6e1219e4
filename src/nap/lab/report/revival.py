"""ReLU revival: dead units of an MLP over steps, and how many come back after a change of task."""

from __future__ import annotations

from nap.lab.report.limits import share_limits
from nap.lab.report.panels import Figure, Measure, panel
from nap.lab.report.style import BLUE, PURPLE, VERMILION, Look, looks
from nap.lab.rows import Rows

NORMS = {"none": Look(VERMILION), "LayerNorm": Look(BLUE), "RMSNorm": Look(PURPLE)}
WORDS = {"none": "no norm"}
OPTIMIZERS = ("Adam", "SGD")
MEASURES = (
    Measure("dead_units", "Dead units", fraction=True),
    Measure("revived", "Revived since last look", fraction=True),
)
MOST_MARKS = 40


def figures(rows: Rows) -> list[Figure]:
    """Dead units and revived fraction, one column an optimizer, with the changes of task marked."""
    changes = task_changes(rows)
    optimizers = [name for name in OPTIMIZERS if name in rows.unique("optimizer")]
    optimizers += [name for name in rows.unique("optimizer") if name not in OPTIMIZERS]
    arms = {
        WORDS.get(norm, norm): (look, {"norm": norm})
        for norm, look in looks(NORMS, rows.unique("norm")).items()
    }
    panels = []
    for measure in MEASURES:
        line = [
            panel(
                rows.where(optimizer=optimizer),
                measure,
                arms,
                x="step",
                title=f"{measure.words}, {optimizer}",
                marks=changes if len(changes) <= MOST_MARKS else (),
            )
            for optimizer in optimizers
        ]
        panels += share_limits(line)
    dashes = (
        "Dashed: the task changes" if len(changes) <= MOST_MARKS else f"The task changes {len(changes)} times"
    )
    return [
        Figure(
            "revival",
            panels,
            columns=2,
            caption=f"{dashes}. Dead: zero on the whole probe batch, all hidden layers. "
            "Revived: of the units that were dead at the measurement before, the fraction that is alive.",
        )
    ]


def missing(rows: Rows) -> list[str]:
    """Combinations of norm and optimizer that have no rows."""
    have = {(row.get("norm"), row.get("optimizer")) for row in rows}
    return [
        f"{WORDS.get(norm, norm)}, {optimizer}"
        for norm in NORMS
        for optimizer in OPTIMIZERS
        if (norm, optimizer) not in have
    ]


def task_changes(rows: Rows) -> list[float]:
    """The steps at which a new task starts, the first task left out.

    >>> task_changes(Rows({"task": 1 + s // 4, "step": s, "step_in_task": s % 4} for s in range(1, 10, 2)))
    [4, 8]
    """
    first: dict[int, float] = {}
    for row in rows:
        if row.get("task") is not None and row.get("step") is not None:
            start = row["step"] - (row.get("step_in_task") or 0)
            first[row["task"]] = min(start, first.get(row["task"], start))
    return [first[task] for task in sorted(first)[1:]]
