"""What Figures 3 and 5 show of Atari, asked of MinAtar; and norm and effective rate of each layer."""

from __future__ import annotations

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region, asked_of
from nap.lab.claims.effects import CONSTANT, FALLS, GROWS, every, ratio
from nap.lab.claims.samples import Samples, together
from nap.lab.experiments.common.rainbow.claims import LAYER_NORM, NAP, games_of, whole_layers
from nap.lab.experiments.fig3 import claims as fig3
from nap.lab.experiments.fig5_suite import claims as fig5_suite
from nap.lab.rows import Rows


def layer_rows(samples: Samples, arm: str) -> Rows:
    """Rows of the layers that a norm follows."""
    rows = whole_layers(samples.select(kind="layer", arm=arm))
    followed = Rows(row for row in rows if row.get("effective_rate") is not None)
    if not followed:
        raise NotEnough(f"there are no rows of layers of arm “{arm}” that a norm follows")
    return followed


def by_layer(samples: Samples, metric: str, arm: str, needs: Region) -> Evidence:
    """By which factor a metric changes over training, geometric mean over games: every layer decides."""
    games, rows = list(games_of(samples)), layer_rows(samples, arm)
    of_arm = Samples(rows)
    cases = {}
    for layer in sorted(rows.unique("layer")):
        runs = [of_arm.series(metric, along="frames", layer=layer, game=game) for game in games]
        ends = np.array([(run.first(), run.last()) for run in together(*runs)])  # (games, 2, seeds)
        if (ends <= 0).any():
            raise NotEnough(f"the {metric.replace('_', ' ')} of {layer} is zero in some runs")
        factor = np.exp(np.log(ends[:, 1] / ends[:, 0]).mean(0))
        what = f"{metric.replace('_', ' ')}, end of training against start, {arm}"
        cases[layer] = ratio(what, factor, np.ones_like(factor), needs)
    return every(cases)


LAYERS = (
    Claim(
        "minatar.layernorm-layer-norms",
        "With LayerNorm, the norm of every layer grows.",
        "Section 4.2",
        lambda s: by_layer(s, "norm", LAYER_NORM, GROWS),
    ),
    Claim(
        "minatar.layernorm-layer-rates",
        "So the effective learning rate of every layer falls, though none is scheduled.",
        "Section 4.2",
        lambda s: by_layer(s, "effective_rate", LAYER_NORM, FALLS),
    ),
    Claim(
        "minatar.nap-layer-rates",
        "With NaP and no schedule, the effective learning rate of every layer stays.",
        "Section 4.2",
        lambda s: by_layer(s, "effective_rate", NAP, CONSTANT),
    ),
)
CLAIMS = (*asked_of((*fig3.CLAIMS, *fig5_suite.CLAIMS), "minatar", "of Atari"), *LAYERS)
