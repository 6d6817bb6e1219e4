"""What §1 and §3.3 say of Rainbow agents beside the figures: rare projections, no offsets, weight decay."""

from __future__ import annotations

from nap.lab.experiments.ablations.config import DEMO, PAPER, SMALL
from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.minatar.config import TUNING

EXPERIMENT = Experiment(
    name="ablations",
    order=12,
    package=__name__,
    title="rare projections, no offsets and weight decay in Rainbow agents (§1, §3.3)",
    shows="Projecting every 1,000 updates is as good as after each; removing offsets may help; weight decay "
    "hurts agents that learn values.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "", "small": "", "paper": ""},
    tuning=TUNING,
)
