"""Figure 5 (left) in MinAtar: one Rainbow agent for all five games, one after another, twice."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from nap.lab.experiments import fig5_sequential, minatar
from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.fig3 import Schedules
from nap.lab.experiments.fig5_sequential import Sequence


def sequence_of(config: Schedules) -> Sequence:
    """The same agent and games, one after another."""
    shared = {name: value for name, value in vars(config).items() if name not in ("arms", "end_at")}
    return Sequence(**shared)


_PAPER = sequence_of(minatar.PAPER)

EXPERIMENT = Experiment(
    name="minatar-sequential",
    title="one Rainbow agent for MinAtar's games, one after another, twice (Figure 5, left)",
    shows="Said of Atari: on its second visit to each game an agent with NaP learns like a freshly "
    "initialised one; without NaP it does not.",
    scales={
        "demo": replace(
            sequence_of(minatar.DEMO), games=(minatar.BREAKOUT, "minatar/asterix"), frames=3_000, intervals=5
        ),
        "small": replace(_PAPER, frames=500_000, intervals=10, seeds=5, seeds_per_run=5),
        "paper": replace(_PAPER, frames=2_000_000, intervals=20),
    },
    runs=partial(fig5_sequential.runs, experiment="minatar-sequential"),
    needs={"demo": "", "small": "", "paper": ""},
    folder="minatar-sequential",
    tuning=minatar.TUNING,
)
