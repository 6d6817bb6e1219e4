"""ReLU revival: dead units of an MLP over steps, and the fraction of them that revive, task by task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from nap.lab.report import style
from nap.lab.report.panels import Figure, Measure, arms_of, panel, share_y_axis
from nap.lab.rows import Row, Rows

STYLES = {"none": style.BASELINE, "LayerNorm": style.NORM, "RMSNorm": style.LineStyle(style.PURPLE)}
LABELS = {"none": "no norm"}
OPTIMIZERS = ("Adam", "SGD")
DEAD = Measure("dead_units", "Dead units", fraction=True)
REVIVED = Measure("revived", "Dead units alive at the next measurement", fraction=True)
MAX_MARKS = 40  # vertical lines in one panel


def figures(rows: Rows) -> list[Figure]:
    """Dead units over steps, with the changes of task, and revival over tasks; a column per optimizer."""
    changes = task_changes(rows)
    marks = changes if len(changes) <= MAX_MARKS else ()
    optimizers = [name for name in OPTIMIZERS if name in rows.unique("optimizer")]
    optimizers += [name for name in rows.unique("optimizer") if name not in OPTIMIZERS]
    arms = arms_of(rows, STYLES, key="norm", labels=LABELS)
    plots: tuple[tuple[Measure, Rows, str, Sequence[float]], ...] = (
        (DEAD, rows, "step", marks),
        (REVIVED, revival_by_task(rows), "task", ()),
    )
    panels = []
    for measure, measured, x, lines in plots:
        row = [
            panel(measured.where(optimizer=name), measure, arms, x=x, title=title, marks=lines)
            for name in optimizers
            for title in [f"{measure.label}, {name}"]
        ]
        panels += share_y_axis(row)
    dashes = "Dashed: the task changes." if marks else f"The task changes {len(changes)} times."
    return [
        Figure(
            "revival",
            panels,
            columns=2,
            caption=f"{dashes} Dead: zero on the whole probe batch; units of all hidden layers. Below, for "
            "each task: of the units that are dead at one measurement, those that are alive at the next.",
        )
    ]


def missing(rows: Rows) -> list[str]:
    """Combinations of norm and optimizer that have no rows."""
    have = {(row.get("norm"), row.get("optimizer")) for row in rows}
    return [
        f"{LABELS.get(norm, norm)}, {optimizer}"
        for norm in STYLES
        for optimizer in OPTIMIZERS
        if (norm, optimizer) not in have
    ]


def revival_by_task(rows: Rows) -> Rows:
    """For each arm, seed and task, the fraction of dead units that live at the next measurement.

    Each row's `revived` is weighted by the units dead before; a task without dead units has no row.

    >>> seen = [(1, 0.5, None), (1, 0.25, 0.5), (2, 0.0, 1.0), (2, 0.0, 0.0)]   # task, dead, revived
    >>> made = revival_by_task(
    ...     Rows({"task": t, "step": i, "dead_units": d, "revived": r} for i, (t, d, r) in enumerate(seen))
    ... )
    >>> made.values("task"), made.values("revived")
    ([1, 2], [0.5, 1.0])
    """
    runs: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if all(row.get(key) is not None for key in ("task", "step", "dead_units")):
            runs.setdefault(tuple(row.get(key) for key in ("norm", "optimizer", "seed")), []).append(row)
    by_task: list[Row] = []
    for (norm, optimizer, seed), run in runs.items():
        run.sort(key=lambda row: row["step"])
        dead: dict[int, float] = {}
        revived: dict[int, float] = {}
        for before, now in pairwise(run):
            if now.get("revived") is not None:
                task, weight = now["task"], before["dead_units"]
                dead[task] = dead.get(task, 0.0) + weight
                revived[task] = revived.get(task, 0.0) + weight * now["revived"]
        common = {"norm": norm, "optimizer": optimizer, "seed": seed}
        by_task += [common | {"task": t, "revived": revived[t] / dead[t]} for t in dead if dead[t]]
    return Rows(by_task)


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
