"""Table 1, CIFAR-10: does NaP get in the way of a network that needs no help? (§5.2)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from nap.lab.experiments.experiment import Experiment, Run, Tuning
from nap.lab.experiments.seeded_runs import seeded_runs, settings_of
from nap.lab.loops.supervised.arms import BASELINE, NAP, NORM_ONLY, TRANSLATED, VisionArm
from nap.lab.loops.supervised.run import VisionWork
from nap.lab.loops.supervised.settings import Seeing
from nap.lab.models.presets import VGG_LIKE
from nap.validation import check_range as check

ARMS = (BASELINE, NORM_ONLY, NAP, TRANSLATED)
ArmName = Literal["baseline", "norm only", "NaP", "NaP translated"]


@dataclass(frozen=True)
class Cifar(Seeing):
    """Settings of Table 1 (CIFAR-10)."""

    arms: tuple[ArmName, ...] = ("baseline", "norm only", "NaP")
    """arms to train; "NaP translated": weights in front of norms get rates that decay makes of the plan"""
    together: int = 1
    """networks of an arm, with seeds of their own, that are one run; on a GPU they learn in one step"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "together", self.together, 1)
        if self.together > 1 and self.dropout:
            raise ValueError("dropout is drawn for one network at a time: leave --dropout or --together out")


def runs(config: Cifar) -> list[Run]:
    """A run for each arm and seed."""
    arms = [arm for arm in ARMS if arm.name in config.arms]
    judged = f" (judged on {config.held_out} training images held out)" if config.held_out else ""
    tags = {"experiment": "table1-cifar", "data": config.data + judged}
    return [
        run
        for arm in arms
        for run in seeded_runs(
            config, [arm], _settings(config, arm), VisionWork, tags, together=config.together
        )
    ]


def _settings(config: Cifar, arm: VisionArm) -> Seeing:
    """Of one arm: the norm of its weights is NaP's rate, while weight decay leads the others to their own."""
    settings = settings_of(config, Seeing)
    return settings if arm.project else replace(settings, weight_norm=0.0)


# "VGG16-like": of three networks with VGG-16's arithmetic, that whose baseline ends nearest to the paper's.
# VGG-16 itself (`Seeing`'s own) ends .8 points below. Weights start as wide as those of Haiku's default, a
# normal of deviation 1/√inputs that is cut off at two deviations; NaP's have one norm, and so one rate, which
# was chosen on images kept back, in the first of the three: there black edges without smoothing make norms
# cost .8 points, and with edges of the mean level all arms end lower (PAPER.md).
PAPER = Cifar(
    channels=VGG_LIKE,
    mean=True,
    hidden=(),
    weight_size=0.88,
    weight_norm=8.7,
    edges="mirror",
    smoothing=0.1,
    together=3,
)
SMALL = replace(PAPER, steps=40_000, every=2)
DEMO = Cifar(
    data="digits",
    channels=(16, 16, 0, 32, 32, 0),
    hidden=(64,),
    steps=900,
    every=2,
    crop=1,
    flip=False,
)

EXPERIMENT = Experiment(
    name="table1-cifar",
    title="an image classifier with and without NaP (Table 1, CIFAR-10)",
    shows="With the baseline's own learning-rate schedule, a network with NaP ends as good as the baseline.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=runs,
    needs={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
    folder="table1-cifar",
    tuning=Tuning(
        metric="test_accuracy", rates=(0.025, 0.05, 0.1), over="last", changes={"held_out": 10_000}
    ),
)
