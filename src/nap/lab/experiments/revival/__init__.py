"""Dead units of an MLP after sudden changes of its task: who comes back (§3.1, Appendix C.4)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nap.lab.experiments.experiment import Experiment
from nap.lab.loops.population.settings import OneNetwork, TaskChanges
from nap.validation import check_range

NORMS = {"none": "none", "LayerNorm": "layer", "RMSNorm": "rms"}


@dataclass(frozen=True)
class RevivalConfig(OneNetwork, TaskChanges):
    """Settings of the revival experiment."""

    sgd_learning_rate: float = 0.1
    """learning rate of the arms that use SGD"""

    def __post_init__(self) -> None:
        OneNetwork.__post_init__(self)
        TaskChanges.__post_init__(self)
        check_range(self, "sgd_learning_rate", self.sgd_learning_rate, 1e-12, 1e3)


PAPER = RevivalConfig(data="mnist", images=0, width=512, depth=2, tasks=20, epochs=10, learning_rate=1e-3)
SMALL = replace(PAPER, data="cifar10", images=2048, tasks=20, epochs=20)
DEMO = replace(SMALL, data="digits", images=1024, width=128, batch_size=64, tasks=10, epochs=15, seeds=5)

EXPERIMENT = Experiment(
    name="revival",
    order=13,
    package=__name__,
    title="dead units after task changes (Appendix C.4)",
    shows="With a norm in front of the nonlinearity, units that died at a change of task come back to life.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    datasets={"demo": "digits", "small": "cifar10", "paper": "mnist"},
)
