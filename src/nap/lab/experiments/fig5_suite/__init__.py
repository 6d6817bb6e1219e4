"""Figure 5, right: the agents of Figure 3 on the suite of 57 Atari games (§5.3).

The same runs, of more games at the paper's scale, in the same folder: what one has run the other need not.
"""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments import fig3
from nap.lab.experiments.fig3 import PAPER
from nap.lab.loops.rainbow.atari import GAMES

EXPERIMENT = replace(
    fig3.EXPERIMENT,
    name="fig5-suite",
    order=7,
    package=__name__,
    title="four Rainbow agents on a suite of Atari games (Figure 5, right)",
    shows="Over all games NaP with a linear schedule scores best.",
    scales={**fig3.EXPERIMENT.scales, "paper": replace(PAPER, games=GAMES)},
    readers=(),
)
