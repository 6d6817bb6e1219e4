"""The ablations of Rainbow agents: scores over frames, and what goes on inside."""

from __future__ import annotations

from nap.lab.experiments.ablations import ARMS, LAYER_NORM_DECAY, NO_OFFSETS, RAINBOW_DECAY, RARELY
from nap.lab.experiments.common.rainbow import figure as family
from nap.lab.experiments.common.rainbow.figure import lacking_by_game, scores
from nap.lab.report.panels import Figure
from nap.lab.report.style import DOTTED, PURPLE, SKY, VERMILION, Look
from nap.lab.rows import Rows

LOOKS = {
    **family.LOOKS,
    RARELY: Look(SKY),
    NO_OFFSETS: Look(PURPLE),
    LAYER_NORM_DECAY: Look(SKY, DOTTED),
    RAINBOW_DECAY: Look(VERMILION, DOTTED),
}


def figures(rows: Rows) -> list[Figure]:
    """Scores of every game, then for each game what goes on inside."""
    return scores(rows, LOOKS)


def missing(rows: Rows) -> list[str]:
    """Arms without rows, by game."""
    return lacking_by_game(rows, ARMS)
