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
    ahead,
)

TEXT = "Section 5.3; Figure 5, right"
CLAIMS = (
    Claim(
        "fig5-suite.schedule-best-iqm",
        "NaP with a linear schedule has the highest interquartile mean of the four agents.",
        TEXT,
        lambda s: ahead(s, SCHEDULED, RAINBOW, LAYER_NORM, NAP, needs=BETTER),
    ),
    Claim(
        "fig5-suite.schedule-best-mean",
        "NaP with a linear schedule has the highest mean of the four agents.",
        TEXT,
        lambda s: ahead(s, SCHEDULED, RAINBOW, LAYER_NORM, NAP, name="mean", needs=BETTER),
    ),
    Claim(
        "fig5-suite.layernorm-improves",
        "LayerNorm improves on the standard Rainbow.",
        "Section 4.2; Figure 5, right",
        lambda s: ahead(s, LAYER_NORM, RAINBOW, needs=BETTER),
    ),
    Claim(
        "fig5-suite.constant-rate-worse",
        "At a constant effective rate, agents with NaP do worse than those with free parameters.",
        "Section 6; Figure 5, right",
        lambda s: ahead(s, NAP, LAYER_NORM, needs=WORSE),
    ),
)
