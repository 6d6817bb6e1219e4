"""Settings of revival at three scales."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
