"""Table 1, ImageNet: does NaP get in the way of a ResNet-50? (§5.2)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nap.lab.experiments.experiment import Experiment, arm_names
from nap.lab.loops.supervised.settings import BASELINE, NAP, NORM_ONLY, TRANSLATED, ImageNetConfig

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
SMALL = replace(
    PAPER, data="cifar10", image_size=64, resize=64, min_crop_area=0.25, epochs=30, warmup_epochs=2.0
)
DEMO = Table1ImageNetConfig(
    data="digits",
    blocks=(1, 1, 1),
    width=8,
    small_stem=True,
    image_size=16,
    resize=16,
    min_crop_area=0.5,
    flip=False,
    batch_size=64,
    epochs=8,
    warmup_epochs=1.0,
)

EXPERIMENT = Experiment(
    name="table1-imagenet",
    order=16,
    package=__name__,
    title="a ResNet-50 with and without NaP (Table 1, ImageNet)",
    shows="With the baseline's own learning-rate schedule, a network with NaP ends as good as the baseline.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    datasets={"demo": "digits", "small": "cifar10", "paper": ""},
)
