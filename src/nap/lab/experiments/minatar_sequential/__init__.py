"""Figure 5 (left) in MinAtar: one Rainbow agent for all five games, one after another, twice."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments import fig5_sequential, minatar
from nap.lab.experiments.common.rainbow import adapt
from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.fig5_sequential import Fig5SequentialConfig

PAPER = adapt(Fig5SequentialConfig, minatar.PAPER, frames=2_000_000, intervals=20)
SMALL = replace(PAPER, frames=400_000, intervals=10)
DEMO = adapt(
    Fig5SequentialConfig,
    minatar.DEMO,
    games=(minatar.BREAKOUT, "minatar/asterix"),
    frames=3_000,
    intervals=5,
)

EXPERIMENT = Experiment(
    name="minatar-sequential",
    order=11,
    package=__name__,
    like=fig5_sequential.EXPERIMENT,
    claims_note="stated for Atari",
    title="one Rainbow agent for MinAtar's games, one after another, twice (Figure 5, left)",
    shows="Stated for Atari: on its second visit to each game an agent with NaP learns like a freshly "
    "initialised one; without NaP it does not.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    tuning=minatar.TUNING,
)
