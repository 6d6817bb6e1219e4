"""The runs of Figure 6: one for each game, end of the schedule and seed."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments.common.rainbow.runs import single_runs
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.fig6 import Fig6Config, ending_at
from nap.lab.loops.rainbow.settings import NAP_LINEAR


def runs(config: Fig6Config, experiment: str = "fig6") -> list[Run]:
    """A run for each game, end and seed."""
    variants = [replace(NAP_LINEAR, name=ending_at(end), end_at=end) for end in config.ends]
    return single_runs(experiment, config, config.games, variants)
