"""Figure 2, coupled networks: a free network and its twins on the sphere, on the same data (§4.1).

One population holds all of it: for every seed a free network and one projected twin for each way to
rescale the learning rate. The labels are CIFAR-10's own.
"""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.fig2.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="fig2",
    order=2,
    package=__name__,
    title="coupled networks: implicit schedules made explicit (Figure 2)",
    shows="A projected network follows its free twin if its learning rates shrink as the free weights grow.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
)
