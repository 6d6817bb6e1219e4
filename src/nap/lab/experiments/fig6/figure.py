"""Figure 6: scores over frames, for each end of the schedule."""

from __future__ import annotations

from functools import partial

from nap.lab.experiments.common.rainbow import figure
from nap.lab.experiments.fig6 import ENDS, ending_at
from nap.lab.report.style import BLACK, BLUE, PURPLE, SKY, LineStyle

COLOURS = (SKY, BLUE, PURPLE, BLACK)
STYLES = {ending_at(end): LineStyle(colour) for end, colour in zip(ENDS, COLOURS, strict=True)}
EXPECTED_ARMS = tuple(STYLES)
EXPECTED_BY = "game"
figures = partial(figure.figures, styles=STYLES)
