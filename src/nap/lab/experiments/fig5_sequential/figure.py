"""Figure 5 (left): scores on the last visit to each game, beside a fresh agent's."""

from __future__ import annotations

from functools import partial

from nap.lab.experiments.common.rainbow import figure
from nap.lab.experiments.experiment import arm_names
from nap.lab.experiments.fig5_sequential import ARMS, FRESH
from nap.lab.report.style import BLACK, DOTTED, LineStyle

STYLES = {**figure.STYLES, FRESH.name: LineStyle(BLACK, DOTTED)}
EXPECTED_ARMS = arm_names(ARMS)
EXPECTED_BY = "game"
figures = partial(figure.visits, styles=STYLES)
