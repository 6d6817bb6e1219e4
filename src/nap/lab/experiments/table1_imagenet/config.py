"""Settings of table1-imagenet at three scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nap.lab.experiments.experiment import arm_names
from nap.lab.loops.supervised.arms import BASELINE, NAP, NORM_ONLY, TRANSLATED
from nap.lab.loops.supervised.viewing import ImageNetConfig

ARMS = (BASELINE, NORM_ONLY, NAP, TRANSLATED)
if TYPE_CHECKING:
    ArmName = str
else:
    ArmName = Literal[arm_names(ARMS)]


@dataclass(frozen=True)
class Table1ImageNetConfig(ImageNetConfig):
    """Settings of Table 1 (ImageNet)."""

    arms: tuple[ArmName, ...] = arm_names(ARMS[:3])
    """arms to train; "NaP translated": weights in front of norms get rates that decay makes of the plan"""


PAPER = Table1ImageNetConfig()
SMALL = replace(PAPER, data="cifar10", size=64, resize=64, smallest=0.25, epochs=30, warm_up=2.0)
DEMO = Table1ImageNetConfig(
    data="digits",
    blocks=(1, 1, 1),
    width=8,
    small_stem=True,
    size=16,
    resize=16,
    smallest=0.5,
    flip=False,
    batch_size=64,
    epochs=8,
    warm_up=1.0,
)
