"""Figure 5 (left) in MinAtar: one Rainbow agent for all five games, one after another, twice."""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.minatar.config import TUNING
from nap.lab.experiments.minatar_sequential.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="minatar-sequential",
    order=11,
    package=__name__,
    title="one Rainbow agent for MinAtar's games, one after another, twice (Figure 5, left)",
    shows="Said of Atari: on its second visit to each game an agent with NaP learns like a freshly "
    "initialised one; without NaP it does not.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "", "small": "", "paper": ""},
    tuning=TUNING,
)
