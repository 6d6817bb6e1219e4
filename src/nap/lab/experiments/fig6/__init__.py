"""Figure 6: where the linear schedule of a Rainbow agent with NaP should end (Appendix C.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nap.lab.experiments import fig3
from nap.lab.experiments.common import rainbow
from nap.lab.experiments.common.rainbow import EVERY_THIRD, RainbowConfig, adapt
from nap.lab.experiments.experiment import Experiment
from nap.lab.loops.rainbow.settings import NAP, NAP_LINEAR, RainbowArm

ENDS = (0.25, 0.5, 0.75, 1.0)  # of the paper, as fractions of training


@dataclass(frozen=True)
class Fig6Config(RainbowConfig):
    """Settings of Figure 6."""

    games: tuple[str, ...] = EVERY_THIRD
    """games, each with agents of its own: Atari ROM names, or catch, which is built in"""
    ends: tuple[float, ...] = ENDS
    """fractions of training at which the schedule reaches its end, an arm each"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ends or not all(0 < end <= 1 for end in self.ends):
            raise ValueError(f"ends is {self.ends}: name fractions of training, 0 < end ≤ 1")

    def rainbow_arms(self) -> list[RainbowArm]:
        return [replace(NAP_LINEAR, name=ending_at(end), end_at=end) for end in self.ends]


def ending_at(end: float) -> str:
    """The name of the arm whose schedule ends there."""
    return f"{NAP.name}, ends at {end:g}"


DEMO, SMALL, PAPER = (adapt(Fig6Config, config) for config in (fig3.DEMO, fig3.SMALL, fig3.PAPER))

EXPERIMENT = Experiment(
    name="fig6",
    order=8,
    package=__name__,
    family=rainbow.__name__,
    title="a sweep over the end of the learning-rate schedule in Rainbow (Figure 6)",
    shows="The faster the rate falls the better at first, and the lower the score reached in the end.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
)
