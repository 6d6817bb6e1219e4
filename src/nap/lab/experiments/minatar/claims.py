"""The claims of Figures 3 and 5 about Atari, tested on MinAtar; and norm and effective rate of each layer."""

from __future__ import annotations

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region, restated
from nap.lab.claims.effects import CONSTANT, FALLS, GROWS, all_of, ratio
from nap.lab.claims.samples import Samples, paired
from nap.lab.experiments.common.rainbow.claims import LAYER_NORM, NAP, merge_noisy_layers, rows_by_game
from nap.lab.experiments.fig3 import claims as fig3
from nap.lab.experiments.fig5_suite import claims as fig5_suite
from nap.lab.rows import Rows


def layer_rows(samples: Samples, arm: str) -> Rows:
    """Rows of the layers that a norm follows."""
    rows = merge_noisy_layers(samples.select(kind="layer", arm=arm))
    normalised = Rows(row for row in rows if row.get("effective_rate") is not None)
    if not normalised:
        raise NotEnough(f"there are no rows of layers of arm “{arm}” that a norm follows")
    return normalised


def by_layer(samples: Samples, metric: str, arm: str, region: Region) -> Evidence:
    """The factor by which a metric changes over training, geometric mean over games; for every layer."""
    games, rows = list(rows_by_game(samples)), layer_rows(samples, arm)
    of_arm = Samples(rows)
    cases = {}
    for layer in sorted(rows.unique("layer")):
        runs = [of_arm.series(metric, along="frames", layer=layer, game=game) for game in games]
        ends = np.array([(run.first(), run.last()) for run in paired(*runs)])  # (games, 2, seeds)
        if (ends <= 0).any():
            raise NotEnough(f"the {metric.replace('_', ' ')} of {layer} is zero in some runs")
        factor = np.exp(np.log(ends[:, 1] / ends[:, 0]).mean(0))
        quantity = f"{metric.replace('_', ' ')}, end of training relative to start, {arm}"
        cases[layer] = ratio(quantity, factor, np.ones_like(factor), region)
    return all_of(cases)


LAYERS = (
    Claim(
        "minatar.layernorm-layer-norms",
        "With LayerNorm, the norm of every layer grows.",
        "Section 4.2",
        lambda s: by_layer(s, "norm", LAYER_NORM, GROWS),
    ),
    Claim(
        "minatar.layernorm-layer-rates",
        "With LayerNorm, the effective learning rate of every layer falls although no schedule is set.",
        "Section 4.2",
        lambda s: by_layer(s, "effective_rate", LAYER_NORM, FALLS),
    ),
    Claim(
        "minatar.nap-layer-rates",
        "With NaP and no schedule, the effective learning rate of every layer stays constant.",
        "Section 4.2",
        lambda s: by_layer(s, "effective_rate", NAP, CONSTANT),
    ),
)
CLAIMS = (*restated((*fig3.CLAIMS, *fig5_suite.CLAIMS), "minatar", "stated for Atari"), *LAYERS)
