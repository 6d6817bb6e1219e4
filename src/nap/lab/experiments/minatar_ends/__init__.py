"""Figure 6 in MinAtar: where the linear schedule of a Rainbow agent with NaP should end."""

from __future__ import annotations

from nap.lab.experiments import fig6, minatar
from nap.lab.experiments.common.rainbow import adapt
from nap.lab.experiments.experiment import Experiment

DEMO, SMALL, PAPER = (
    adapt(fig6.Fig6Config, config) for config in (minatar.DEMO, minatar.SMALL, minatar.PAPER)
)

EXPERIMENT = Experiment(
    name="minatar-ends",
    order=10,
    package=__name__,
    like=fig6.EXPERIMENT,
    claims_note="stated for Atari",
    title="a sweep over the end of the learning-rate schedule in MinAtar's games (Figure 6)",
    shows="Stated for Atari: the faster the rate falls, the better at first, and the lower in the end.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    tuning=minatar.TUNING,
)
