"""Table 1, ImageNet: does NaP get in the way of a ResNet-50? (§5.2)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.experiments.seeded_runs import seeded_runs, settings_of
from nap.lab.loops.supervised.arms import BASELINE, NAP, NORM_ONLY, TRANSLATED
from nap.lab.loops.supervised.viewing import Viewing
from nap.lab.loops.supervised.viewing_run import ViewingWork

ARMS = (BASELINE, NORM_ONLY, NAP, TRANSLATED)
ArmName = Literal["baseline", "norm only", "NaP", "NaP translated"]


@dataclass(frozen=True)
class ImageNet(Viewing):
    """Settings of Table 1 (ImageNet)."""

    arms: tuple[ArmName, ...] = ("baseline", "norm only", "NaP")
    """arms to train; "NaP translated": weights in front of norms get rates that decay makes of the plan"""


def runs(config: ImageNet) -> list[Run]:
    """A run for each arm and seed."""
    arms = [arm for arm in ARMS if arm.name in config.arms]
    tags = {"experiment": "table1-imagenet"}
    return seeded_runs(config, arms, settings_of(config, Viewing), ViewingWork, tags, distributed=True)


PAPER = ImageNet()
SMALL = replace(PAPER, data="cifar10", size=64, resize=64, smallest=0.25, epochs=30, warm_up=2.0)
DEMO = ImageNet(
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

EXPERIMENT = Experiment(
    name="table1-imagenet",
    title="a ResNet-50 with and without NaP (Table 1, ImageNet)",
    shows="With the baseline's own learning-rate schedule, a network with NaP ends as good as the baseline.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=runs,
    needs={"demo": "digits", "small": "cifar10", "paper": ""},
    folder="table1-imagenet",
)
