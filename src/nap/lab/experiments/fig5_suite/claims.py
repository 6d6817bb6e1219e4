"""Figure 5, right: the four agents of Figure 3 over a suite of games (§5.3)."""

from __future__ import annotations

from nap.lab.claims.claim import Claim
from nap.lab.experiments.common.rainbow.claims import (
    BETTER,
    LAYER_NORM,
    NAP,
    RAINBOW,
    SCHEDULED,
    WORSE,
    final_advantage,
)

TEXT = "Section 5.3; Figure 5, right"
CLAIMS = (
    Claim(
        "fig5-suite.schedule-best-iqm",
        "NaP with a linear schedule has the highest interquartile mean of the four agents.",
        TEXT,
        lambda s: final_advantage(s, SCHEDULED, RAINBOW, LAYER_NORM, NAP, region=BETTER),
    ),
    Claim(
        "fig5-suite.schedule-best-mean",
        "NaP with a linear schedule has the highest mean of the four agents.",
        TEXT,
        lambda s: final_advantage(s, SCHEDULED, RAINBOW, LAYER_NORM, NAP, aggregate="mean", region=BETTER),
    ),
    Claim(
        "fig5-suite.layernorm-improves",
        "LayerNorm improves on the standard Rainbow.",
        "Section 4.2; Figure 5, right",
        lambda s: final_advantage(s, LAYER_NORM, RAINBOW, region=BETTER),
    ),
    Claim(
        "fig5-suite.constant-rate-worse",
        "At a constant effective rate, agents with NaP do worse than those with free parameters.",
        "Section 6; Figure 5, right",
        lambda s: final_advantage(s, NAP, LAYER_NORM, region=WORSE),
    ),
)
