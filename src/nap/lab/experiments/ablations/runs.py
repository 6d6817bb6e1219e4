"""The runs of the ablations: one for each game, arm and seed."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments.ablations.config import AblationsConfig
from nap.lab.experiments.common.rainbow.runs import single_runs
from nap.lab.experiments.experiment import Run
from nap.lab.loops.rainbow.variants import LAYER_NORM, NAP_LINEAR, RAINBOW


def runs(config: AblationsConfig) -> list[Run]:
    """A run for each game, arm and seed."""
    bases = {"NaP": NAP_LINEAR, "LayerNorm": LAYER_NORM, "Rainbow": RAINBOW}
    changes = {
        "projected rarely": {"every": config.rarely},
        "no offsets": {"offsets": False},
        "weight decay": {"weight_decay": config.weight_decay},
        "": {},
    }
    variants = []
    for name in config.arms:
        base, _, change = name.partition(", ")
        variants.append(replace(bases[base], name=name, **changes[change]))  # type: ignore[arg-type]
    return single_runs("ablations", config, config.games, variants)
