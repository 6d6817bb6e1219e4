"""Figures 3 and 5 (right) in MinAtar: the four Rainbow agents where games are small and seeds can be many."""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.minatar.config import DEMO, PAPER, SMALL, TUNING

EXPERIMENT = Experiment(
    name="minatar",
    order=9,
    package=__name__,
    title="implicit and explicit learning-rate schedules in MinAtar's games (Figures 3 and 5, right)",
    shows="Said of Atari: with fixed norms and a constant rate Rainbow learns worse than with LayerNorm "
    "alone; with a linear schedule it scores best.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "", "small": "", "paper": ""},
    tuning=TUNING,
)
