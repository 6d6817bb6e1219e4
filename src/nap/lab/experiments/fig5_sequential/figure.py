"""Figure 5 (left): scores on the last visit to each game, beside a fresh agent's."""

from __future__ import annotations

from nap.lab.experiments.common.rainbow import figure as family
from nap.lab.experiments.common.rainbow.figure import lacking_by_game, visits
from nap.lab.experiments.fig5_sequential import ARMS, FRESH
from nap.lab.report.panels import Figure
from nap.lab.report.style import BLACK, DOTTED, Look
from nap.lab.rows import Rows

LOOKS = {**family.LOOKS, FRESH.name: Look(BLACK, DOTTED)}


def figures(rows: Rows) -> list[Figure]:
    """Scores on the last visit to each game, fresh agents dotted; all visits, one after another, below."""
    return visits(rows, LOOKS)


def missing(rows: Rows) -> list[str]:
    """Agents without rows, by game."""
    return lacking_by_game(rows, (arm.name for arm in ARMS))
