"""The random-walk model: dead indices over steps for each model, and a few trajectories of each."""

from __future__ import annotations

import numpy as np

from nap.lab.experiments.walk import MODELS
from nap.lab.report import style
from nap.lab.report.curves import Curve
from nap.lab.report.panels import Figure, Line, Measure, Panel, panel, share_y_axis
from nap.lab.report.style import LineStyle
from nap.lab.rows import Rows

OPTIMIZERS = {"GD": "gradient descent", "RMSProp": "RMSProp"}
VARIANTS = {"": "no norm", " + norm": "norm", " + norm + centring": "norm + centring"}
VARIANT_STYLES = {
    "no norm": style.BASELINE,
    "norm": style.NORM,
    "norm + centring": LineStyle(style.ORANGE),
}
EXPECTED_ARMS = tuple(sorted((model.arm for model in MODELS), key=lambda arm: arm.startswith("RMSProp")))
MEASURES = (
    Measure("dead", "Dead indices", fraction=True),
    Measure("largest_share", "Largest index's share", fraction=True),
)
MAX_POINTS = 250  # of a trajectory


def figures(rows: Rows) -> list[Figure]:
    """Dead fraction and largest share of each model, then small multiples of trajectories."""
    counts, paths = rows.where(kind=None), rows.where(kind="trajectory")
    made = [
        Figure(
            "walk",
            [one for measure in MEASURES for one in share_y_axis(_panels(counts, measure))],
            columns=2,
            caption="Dead: the fraction of indices that are not positive. Largest share: how much of the "
            "squared norm lies in a single index; 100% if one index outweighs all others.",
        )
    ]
    if drawn := [arm for arm in EXPECTED_ARMS if arm in paths.unique("arm")]:
        made.append(
            Figure(
                "walk-paths",
                [_trajectories(paths.where(arm=arm), arm) for arm in drawn],
                columns=3,
                title="Trajectories",
                caption="Values of a few indices of seed 0, one line each; grey: the index is dead.",
                plain=True,
            )
        )
    return made


def _panels(rows: Rows, measure: Measure) -> list[Panel]:
    """A panel for each optimizer, with a line for each variant."""
    panels = []
    for optimizer, name in OPTIMIZERS.items():
        arms = {
            label: (VARIANT_STYLES[label], {"arm": optimizer + variant})
            for variant, label in VARIANTS.items()
            if optimizer + variant in rows.unique("arm")
        }
        panels.append(panel(rows, measure, arms, x="step", title=f"{measure.label}, {name}"))
    return panels


def _trajectories(rows: Rows, arm: str) -> Panel:
    optimizer = next(name for name in OPTIMIZERS if arm.startswith(name))
    colour = VARIANT_STYLES[VARIANTS[arm.removeprefix(optimizer)]].colour
    values, indices, steps = rows.matrix("value", by=("index", "step"))
    stride = max(1, len(steps) // MAX_POINTS)
    x, empty = np.array(steps, float)[::stride], np.empty(0)
    lines = []
    for index, path in zip(indices, values[:, ::stride], strict=True):
        recorded = ~np.isnan(path)
        no_band = np.full(int(recorded.sum()), np.nan)
        curve = Curve(x[recorded], path[recorded], no_band, no_band, empty, empty, seeds=1)
        lines.append(Line(f"index {index}", LineStyle(colour, width=0.9), curve))
    return Panel(title=arm, x_label="step", y_label="value", lines=lines, shade_below_zero=True)
