"""The runs of Figure 3: one for each game, arm and seed."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments.common.rainbow.runs import single_runs
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.fig3 import Fig3Config
from nap.lab.loops.rainbow.settings import FOUR


def runs(config: Fig3Config, experiment: str = "fig3") -> list[Run]:
    """A run for each game, arm and seed."""
    variants = [replace(v, end_at=config.end_at) for v in FOUR if v.name in config.arms]
    return single_runs(experiment, config, config.games, variants)
