"""ReLU revival: dead units of an MLP over steps, and how many of the dead come back, task by task."""

from __future__ import annotations

from itertools import pairwise

from nap.lab.report.panels import Figure, Measure, arms_of, panel, share_limits
from nap.lab.report.style import BLUE, PURPLE, VERMILION, Look
from nap.lab.rows import Row, Rows

NORM_LOOKS = {"none": Look(VERMILION), "LayerNorm": Look(BLUE), "RMSNorm": Look(PURPLE)}
WORDS = {"none": "no norm"}
OPTIMIZERS = ("Adam", "SGD")
DEAD = Measure("dead_units", "Dead units", fraction=True)
REVIVED = Measure("revived", "Dead units alive at the next measurement", fraction=True)
MOST_MARKS = 40


def figures(rows: Rows) -> list[Figure]:
    """Dead units over steps, with the changes of task, and revival over tasks; a column an optimizer."""
    changes = task_changes(rows)
    marked = len(changes) <= MOST_MARKS
    optimizers = [name for name in OPTIMIZERS if name in rows.unique("optimizer")]
    optimizers += [name for name in rows.unique("optimizer") if name not in OPTIMIZERS]
    arms = arms_of(rows, NORM_LOOKS, key="norm", words=WORDS)
    looked_at = (
        (DEAD, rows, "step", changes if marked else ()),
        (REVIVED, revival_by_task(rows), "task", ()),
    )
    panels = []
    for measure, of, x, marks in looked_at:
        titles = {name: f"{measure.words}, {name}" for name in optimizers}
        panels += share_limits(
            [
                panel(of.where(optimizer=name), measure, arms, x=x, title=title, marks=marks)
                for name, title in titles.items()
            ]
        )
    dashes = "Dashed: the task changes." if marked else f"The task changes {len(changes)} times."
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
        f"{WORDS.get(norm, norm)}, {optimizer}"
        for norm in NORM_LOOKS
        for optimizer in OPTIMIZERS
        if (norm, optimizer) not in have
    ]


def revival_by_task(rows: Rows) -> Rows:
    """For each arm, seed and task the chance of a dead unit to live at the next measurement.

    Each row's `revived` is weighted with how many were dead before; where none was, there is no chance.

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
    found: list[Row] = []
    for (norm, optimizer, seed), of in runs.items():
        of.sort(key=lambda row: row["step"])
        dead: dict[int, float] = {}
        back: dict[int, float] = {}
        for before, now in pairwise(of):
            if now.get("revived") is not None:
                task, share = now["task"], before["dead_units"]
                dead[task] = dead.get(task, 0.0) + share
                back[task] = back.get(task, 0.0) + share * now["revived"]
        common = {"norm": norm, "optimizer": optimizer, "seed": seed}
        found += [common | {"task": task, "revived": back[task] / dead[task]} for task in dead if dead[task]]
    return Rows(found)


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
