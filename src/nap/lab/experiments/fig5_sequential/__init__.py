"""Figure 5, left: one Rainbow agent for a sequence of Atari games, played twice (§5.3)."""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.fig5_sequential.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="fig5-sequential",
    order=6,
    package=__name__,
    title="one Rainbow agent for a sequence of Atari games, played twice (Figure 5, left)",
    shows="On its second visit to each game an agent with NaP learns like a freshly initialised one; without "
    "NaP it does not.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "", "small": "", "paper": ""},
)
