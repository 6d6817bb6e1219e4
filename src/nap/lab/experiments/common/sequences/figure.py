"""Line styles of the arms of the transformer experiments."""

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
from nap.lab.report import style
from nap.lab.report.style import BLACK, BLUE, DASHED, DOTTED, GREEN, ORANGE, PURPLE, SKY, LineStyle

STYLES = {
    BASELINE.name: style.BASELINE,
    PROJECTION_ONLY.name: LineStyle(ORANGE),
    NORM_ONLY.name: style.NORM,
    NAP.name: style.NAP,
    NAP_NO_SCALE.name: LineStyle(GREEN, DASHED),
    NORM_ONLY_RMS.name: LineStyle(BLUE, DOTTED),
    NAP_RMS.name: LineStyle(GREEN, DOTTED),
    with_weight_decay(0.01).name: LineStyle(SKY, DASHED),
    with_weight_decay(0.1).name: LineStyle(PURPLE, DASHED),
    with_weight_decay(1.0).name: LineStyle(BLACK, DASHED),
}
