"""Figure 6: scores over frames, for each end of the schedule."""

from __future__ import annotations

from nap.lab.experiments.common.rainbow.figure import lacking_by_game, scores
from nap.lab.experiments.fig6 import ENDS, ending_at
from nap.lab.report.panels import Figure
from nap.lab.report.style import BLACK, BLUE, PURPLE, SKY, Look
from nap.lab.rows import Rows

COLOURS = (SKY, BLUE, PURPLE, BLACK)
LOOKS = {ending_at(end): Look(colour) for end, colour in zip(ENDS, COLOURS, strict=True)}


def figures(rows: Rows) -> list[Figure]:
    """Scores of every game, then for each game what goes on inside."""
    return scores(rows, LOOKS)


def missing(rows: Rows) -> list[str]:
    """Ends of the schedule without rows, by game."""
    return lacking_by_game(rows, LOOKS)
