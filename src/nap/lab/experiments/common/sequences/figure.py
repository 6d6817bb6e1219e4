"""How the arms of the transformer experiments look."""

from __future__ import annotations

from nap.lab.loops.language.settings import (
    BASELINE,
    NAP,
    NAP_NO_SCALE,
    NAP_RMS,
    NORM_ONLY,
    NORM_ONLY_RMS,
    PROJECTION_ONLY,
    with_weight_decay,
)
from nap.lab.report.style import BLACK, BLUE, DASHED, DOTTED, GREEN, ORANGE, PURPLE, SKY, VERMILION, Look

LOOKS = {
    BASELINE.name: Look(VERMILION),
    PROJECTION_ONLY.name: Look(ORANGE),
    NORM_ONLY.name: Look(BLUE),
    NAP.name: Look(GREEN, width=2.2),
    NAP_NO_SCALE.name: Look(GREEN, DASHED),
    NORM_ONLY_RMS.name: Look(BLUE, DOTTED),
    NAP_RMS.name: Look(GREEN, DOTTED),
    with_weight_decay(0.01).name: Look(SKY, DASHED),
    with_weight_decay(0.1).name: Look(PURPLE, DASHED),
    with_weight_decay(1.0).name: Look(BLACK, DASHED),
}
