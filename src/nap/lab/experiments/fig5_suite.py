"""Figure 5, right: four Rainbow agents on the suite of 57 Atari games (§5.3)."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments import fig3
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.rainbow.atari import GAMES


def runs(config: fig3.Schedules) -> list[Run]:
    """A run for each game, arm and seed."""
    return fig3.runs_of("fig5-suite", config)


PAPER = replace(fig3.PAPER, games=GAMES)

EXPERIMENT = Experiment(
    name="fig5-suite",
    title="four Rainbow agents on a suite of Atari games (Figure 5, right)",
    shows="Over all games NaP with a linear schedule scores best.",
    scales={"demo": fig3.DEMO, "small": fig3.SMALL, "paper": PAPER},
    runs=runs,
    needs={"demo": "", "small": "", "paper": ""},
    folder="fig5-suite",
)
