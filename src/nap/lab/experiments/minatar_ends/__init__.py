"""Figure 6 in MinAtar: where the linear schedule of a Rainbow agent with NaP should end."""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.minatar.config import TUNING
from nap.lab.experiments.minatar_ends.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="minatar-ends",
    order=10,
    package=__name__,
    title="a sweep over the end of the learning-rate schedule in MinAtar's games (Figure 6)",
    shows="Said of Atari: the faster the rate falls the better at first, and the lower the score in the end.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "", "small": "", "paper": ""},
    tuning=TUNING,
)
