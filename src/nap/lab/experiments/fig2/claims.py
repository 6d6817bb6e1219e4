"""Figure 2: a free network and its projected twin, and how rescaled learning rates change the gap.

Gaps are compared with those of the mode "none" (no rescaling), or with the height of the learning curve,
so that the thresholds mean the same for any loss and any length of training.
"""

from __future__ import annotations

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, Region
from nap.lab.claims.effects import FALLS, TENTH, all_of, decide, ratio
from nap.lab.claims.samples import Samples, paired

SAME = 0.01  # "identical": a hundredth of the distance without rescaling; rounding leaves far less
CLOSED = 0.2  # "almost entirely closes": four fifths of the gap are gone
VISIBLE = 1.0  # per cent of a curve's height: about the width of its line
SMALL = 100 * TENTH  # per cent of a curve's height
CAPTION, TEXT = "Figure 2, caption", "Section 4.1"


def distance(samples: Samples, mode: str, region: Region) -> Evidence:
    """The distance between the twins' functions, mean over steps, relative to that without rescaling."""
    both = (samples.series("function_distance", along="step", arm=arm).trained() for arm in (mode, "none"))
    ours, none = paired(*both)
    quantity = "distance between the twins' functions, relative to no rescaling"
    return ratio(quantity, ours.mean(), none.mean(), region)


def gaps(samples: Samples, *modes: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each mode, by seed: the twins' mean absolute difference in loss; the height of the free curve."""
    names = ("loss_free", "loss_projected")
    losses = paired(*(samples.series(name, along="step", arm=mode) for mode in modes for name in names))
    pairs = zip(losses[::2], losses[1::2], strict=True)
    return [
        (np.abs(projected.values - free.values).mean(1), np.ptp(free.values, axis=1))
        for free, projected in pairs
    ]


def gap_against_none(samples: Samples, mode: str, region: Region) -> Evidence:
    """The gap between learning curves, relative to that without rescaling."""
    (ours, _), (none, _) = gaps(samples, mode, "none")
    return ratio("gap between loss curves, relative to no rescaling", ours, none, region)


def relative_gap(samples: Samples, mode: str, region: Region) -> Evidence:
    """The gap between learning curves in per cent of their height."""
    [(gap, height)] = gaps(samples, mode)
    return decide("gap between loss curves", 100 * gap / height, region, unit="% of the curve's height")


CLAIMS = (
    Claim(
        "fig2.per-layer-identical",
        "Rescaling the learning rate of each layer makes the twins identical, as the paper says. (It does "
        "so for plain SGD; Adam's moments need the gradients rescaled too.)",
        f"{TEXT}; {CAPTION}",
        lambda s: distance(s, "per layer", Region(high=SAME)),
    ),
    Claim(
        "fig2.exact-identical",
        "Rescaling learning rate and gradient of each layer makes the twins identical (ours: the true "
        "statement for Adam).",
        "PAPER.md, errata",
        lambda s: distance(s, "exact", Region(high=SAME)),
    ),
    Claim(
        "fig2.global-smaller-gap",
        "Global rescaling leaves a smaller gap than no rescaling.",
        TEXT,
        lambda s: gap_against_none(s, "global", FALLS),
    ),
    Claim(
        "fig2.global-almost-closes",
        "Global rescaling closes the gap almost entirely.",
        CAPTION,
        lambda s: gap_against_none(s, "global", Region(high=CLOSED)),
    ),
    Claim(
        "fig2.global-not-identical",
        "Global rescaling does not make the twins identical.",
        CAPTION,
        lambda s: distance(s, "global", Region(low=SAME)),
    ),
    Claim(
        "fig2.rescaled-curves-similar",
        "With rescaling, per layer or global, the twins' learning curves are similar.",
        TEXT,
        lambda s: all_of(
            {mode: relative_gap(s, mode, Region(high=SMALL)) for mode in ("per layer", "global")}
        ),
    ),
    Claim(
        "fig2.none-visible-gap",
        "Without rescaling, there is a small but visible gap between the twins' learning curves.",
        CAPTION,
        lambda s: relative_gap(s, "none", Region(VISIBLE, SMALL)),
    ),
)
