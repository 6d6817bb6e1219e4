"""Table 1, ImageNet: does NaP get in the way of a ResNet-50? (§5.2)"""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.table1_imagenet.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="table1-imagenet",
    order=16,
    package=__name__,
    title="a ResNet-50 with and without NaP (Table 1, ImageNet)",
    shows="With the baseline's own learning-rate schedule, a network with NaP ends as good as the baseline.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "digits", "small": "cifar10", "paper": ""},
)
