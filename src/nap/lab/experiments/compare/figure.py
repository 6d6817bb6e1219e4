"""Results of a comparison: a table by arm and, where the function yielded numbers, their curves."""

from __future__ import annotations

import numpy as np

from nap.lab.claims.bootstrap import interval
from nap.lab.claims.claim import NotEnough
from nap.lab.claims.samples import Samples
from nap.lab.experiments.compare.claims import by_seed
from nap.lab.experiments.compare.config import ARMS
from nap.lab.report import style
from nap.lab.report.markup import Html
from nap.lab.report.markup import table as table_html
from nap.lab.report.panels import Figure, Measure, arms_of, panel
from nap.lab.report.style import number
from nap.lab.rows import Rows

STYLES = {"plain": style.BASELINE, "norm only": style.NORM, "NaP": style.NAP}
HEAD = ["arm", "learning rate", "result, mean", "95 % interval", "seeds"]


def lines(rows: Rows) -> list[list[str]]:
    """For each arm its learning rate, mean result, interval over seeds and number of seeds."""
    found = []
    for arm in (arm for arm in ARMS if arm in rows.unique("arm")):
        rates = ", ".join(f"{rate:g}" for rate in rows.where(arm=arm).unique("learning_rate"))
        try:
            values = np.array(list(by_seed(Samples(rows), arm).values()))
        except NotEnough:
            found.append([arm, rates, "diverged", "", str(len(rows.where(arm=arm).unique("seed")))])
            continue
        ends = interval(values, generator=np.random.default_rng(0))[1:3] if len(values) > 1 else ()
        found.append(
            [arm, rates, number(values.mean()), " to ".join(map(number, ends)) or "–", str(len(values))]
        )
    return found


def table(rows: Rows) -> Html:
    """`lines` for the report."""
    return table_html(HEAD, lines(rows), label="results by arm", class_="wide")


def figures(rows: Rows) -> list[Figure]:
    """The numbers that the function yielded, in order; empty if it returned one."""
    if len(rows.unique("step")) < 2:
        return []
    made = panel(rows, Measure("result", "Result"), arms_of(rows, STYLES), x="step")
    return [Figure("compare", [made], columns=2, caption="Each arm at its own best learning rate.")]
