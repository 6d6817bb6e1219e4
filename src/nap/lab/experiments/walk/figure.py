"""The random-walk model: dead indices over steps for each model, and a few trajectories of each."""

from __future__ import annotations

import numpy as np

from nap.lab.experiments.walk import MODELS
from nap.lab.report.curves import Curve
from nap.lab.report.panels import Figure, Line, Measure, Panel, arms_of, lacking, panel, share_limits
from nap.lab.report.style import BLUE, ORANGE, VERMILION, Look
from nap.lab.rows import Rows

OPTIMIZERS = {"GD": "gradient descent", "RMSProp": "RMSProp"}
VARIANTS = {"": "no norm", " + norm": "norm", " + norm + centring": "norm + centring"}
LOOKS = {"no norm": Look(VERMILION), "norm": Look(BLUE), "norm + centring": Look(ORANGE)}
ARMS = sorted((model.arm for model in MODELS), key=lambda arm: arm.startswith("RMSProp"))
MEASURES = (
    Measure("dead", "Dead indices", fraction=True),
    Measure("largest_share", "Largest share", fraction=True),
)


def figures(rows: Rows) -> list[Figure]:
    """Dead fraction and largest share of each model, then small multiples of trajectories."""
    counted, paths = rows.where(kind=None), rows.where(kind="trajectory")
    others = [arm for arm in counted.unique("arm") if arm not in ARMS]
    panels = [one for measure in MEASURES for one in share_limits(_panels(counted, measure, others))]
    made = [
        Figure(
            "walk",
            panels,
            columns=2,
            caption="Dead: the fraction of indices that are not positive. Largest share: how much of the "
            "squared norm lies in a single index, 100% where the winner takes all.",
        )
    ]
    drawn = [arm for arm in [*ARMS, *others] if arm in paths.unique("arm")]
    if drawn:
        made.append(
            Figure(
                "walk-paths",
                [_trajectories(paths.where(arm=arm), arm) for arm in drawn],
                columns=3,
                title="Trajectories",
                caption="A few indices of seed 0, one line each; in the grey zone an index is dead.",
                plain=True,
            )
        )
    return made


def _panels(rows: Rows, measure: Measure, others: list[str]) -> list[Panel]:
    present = rows.unique("arm")
    panels = []
    for optimizer in OPTIMIZERS:
        arms = {
            words: (LOOKS[words], {"arm": optimizer + variant})
            for variant, words in VARIANTS.items()
            if optimizer + variant in present
        }
        panels.append(panel(rows, measure, arms, x="step", title=f"{measure.words}, {OPTIMIZERS[optimizer]}"))
    if others:
        more = arms_of(Rows(row for row in rows if row.get("arm") in others), {})
        panels.append(panel(rows, measure, more, x="step", title=f"{measure.words}, other models"))
    return panels


def missing(rows: Rows) -> list[str]:
    """Models that have no rows."""
    return lacking(rows, ARMS)


def _trajectories(rows: Rows, arm: str) -> Panel:
    variant = next((words for end, words in VARIANTS.items() if arm in (o + end for o in OPTIMIZERS)), "")
    colour = LOOKS[variant].colour if variant else VERMILION
    values, indices, steps = rows.matrix("value", by=("index", "step"))
    stride = max(1, len(steps) // 250)
    x, nothing = np.array(steps, float)[::stride], np.empty(0)
    lines = []
    for index, path in zip(indices, values[:, ::stride], strict=True):
        there = ~np.isnan(path)
        blank = np.full(int(there.sum()), np.nan)
        drawn = Curve(x[there], path[there], blank, blank, nothing, nothing, seeds=1)
        lines.append(Line(f"index {index}", Look(colour, width=0.9), drawn))
    return Panel(title=arm, x_label="step", lines=lines, shade_below_zero=True)
