"""Table 1, CIFAR-10: does NaP get in the way of a network that needs no help? (§5.2)"""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment, Tuning
from nap.lab.experiments.table1_cifar.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="table1-cifar",
    order=15,
    package=__name__,
    title="an image classifier with and without NaP (Table 1, CIFAR-10)",
    shows="With the baseline's own learning-rate schedule, a network with NaP ends as good as the baseline.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
    tuning=Tuning(
        metric="test_accuracy", rates=(0.025, 0.05, 0.1), over="last", changes={"held_out": 10_000}
    ),
)
