"""Figure 6 in MinAtar: where the linear schedule of a Rainbow agent with NaP should end."""

from __future__ import annotations

from functools import partial

from nap.lab.experiments import fig6, minatar
from nap.lab.experiments.experiment import Experiment

EXPERIMENT = Experiment(
    name="minatar-ends",
    title="a sweep over the end of the learning-rate schedule in MinAtar's games (Figure 6)",
    shows="Said of Atari: the faster the rate falls the better at first, and the lower the score in the end.",
    scales={scale: fig6.ends_of(config) for scale, config in minatar.EXPERIMENT.scales.items()},
    runs=partial(fig6.runs, experiment="minatar-ends"),
    needs={"demo": "", "small": "", "paper": ""},
    folder="minatar-ends",
    tuning=minatar.TUNING,
)
