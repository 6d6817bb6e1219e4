"""Figure 3: scores of four agents over frames, and what goes on inside their networks."""

from __future__ import annotations

from nap.lab.experiments.common.rainbow.figure import LOOKS, lacking_by_game, scores
from nap.lab.report.panels import Figure
from nap.lab.rows import Rows


def figures(rows: Rows) -> list[Figure]:
    """Scores of every game, then for each game what goes on inside."""
    return scores(rows, LOOKS)


def missing(rows: Rows) -> list[str]:
    """Agents without rows, by game."""
    return lacking_by_game(rows, LOOKS)
