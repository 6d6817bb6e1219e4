"""Settings of minatar-sequential at three scales."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments.common.rainbow.config import adapt
from nap.lab.experiments.fig5_sequential.config import Fig5SequentialConfig
from nap.lab.experiments.minatar import config as minatar

PAPER = adapt(Fig5SequentialConfig, minatar.PAPER, frames=2_000_000, intervals=20)
SMALL = replace(PAPER, frames=500_000, intervals=10, seeds=5, seeds_per_run=5)
DEMO = adapt(
    Fig5SequentialConfig,
    minatar.DEMO,
    games=(minatar.BREAKOUT, "minatar/asterix"),
    frames=3_000,
    intervals=5,
)
