"""The ablations of Rainbow agents: scores over frames, and statistics of their networks."""

from __future__ import annotations

from functools import partial

from nap.lab.experiments.ablations import ARMS, LAYER_NORM_DECAY, NO_OFFSETS, RAINBOW_DECAY, RARELY
from nap.lab.experiments.common.rainbow import figure
from nap.lab.report.style import DOTTED, PURPLE, SKY, VERMILION, LineStyle

STYLES = {
    **figure.STYLES,
    RARELY: LineStyle(SKY),
    NO_OFFSETS: LineStyle(PURPLE),
    LAYER_NORM_DECAY: LineStyle(SKY, DOTTED),
    RAINBOW_DECAY: LineStyle(VERMILION, DOTTED),
}
EXPECTED_ARMS = ARMS
EXPECTED_BY = "game"
figures = partial(figure.figures, styles=STYLES)
