"""Figure 6: where the linear schedule of a Rainbow agent with NaP should end (Appendix C.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nap.lab.experiments import fig3
from nap.lab.experiments.agents import EVERY_THIRD, Playing, single_runs
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.loops.rainbow.variants import NAP_LINEAR


@dataclass(frozen=True)
class Ends(Playing):
    """Settings of Figure 6."""

    games: tuple[str, ...] = EVERY_THIRD
    """games, each with agents of its own: Atari ROM names, or catch, which is built in"""
    ends: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    """fractions of training at which the schedule reaches its end, an arm each"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ends or not all(0 < end <= 1 for end in self.ends):
            raise ValueError(f"ends is {self.ends}: name fractions of training, 0 < end ≤ 1")


def runs(config: Ends, experiment: str = "fig6") -> list[Run]:
    """A run for each game, end and seed."""
    variants = [replace(NAP_LINEAR, name=f"NaP, ends at {end:g}", end_at=end) for end in config.ends]
    return single_runs(experiment, config, config.games, variants)


def ends_of(config: fig3.Schedules) -> Ends:
    """The same agent and games, for this sweep."""
    shared = {name: value for name, value in vars(config).items() if name not in ("arms", "end_at")}
    return Ends(**shared)


EXPERIMENT = Experiment(
    name="fig6",
    title="a sweep over the end of the learning-rate schedule in Rainbow (Figure 6)",
    shows="The faster the rate falls the better at first, and the lower the score reached in the end.",
    scales={"demo": ends_of(fig3.DEMO), "small": ends_of(fig3.SMALL), "paper": ends_of(fig3.PAPER)},
    runs=runs,
    needs={"demo": "", "small": "", "paper": ""},
    folder="fig6",
)
