"""The runs of the ablations: one for each game, arm and seed."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments.ablations import LAYER_NORM_DECAY, NO_OFFSETS, RAINBOW_DECAY, RARELY, AblationsConfig
from nap.lab.experiments.common.rainbow.runs import single_runs
from nap.lab.experiments.experiment import Run
from nap.lab.loops.rainbow.settings import LAYER_NORM, NAP, NAP_LINEAR, RAINBOW


def runs(config: AblationsConfig) -> list[Run]:
    """A run for each game, arm and seed."""
    variants = {
        NAP.name: replace(NAP_LINEAR, name=NAP.name),
        RARELY: replace(NAP_LINEAR, name=RARELY, project_every_updates=config.rarely),
        NO_OFFSETS: replace(NAP_LINEAR, name=NO_OFFSETS, offsets=False),
        LAYER_NORM.name: LAYER_NORM,
        LAYER_NORM_DECAY: replace(LAYER_NORM, name=LAYER_NORM_DECAY, weight_decay=config.weight_decay),
        RAINBOW.name: RAINBOW,
        RAINBOW_DECAY: replace(RAINBOW, name=RAINBOW_DECAY, weight_decay=config.weight_decay),
    }
    return single_runs("ablations", config, config.games, [variants[name] for name in config.arms])
