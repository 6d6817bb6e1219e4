"""Random walks as a model of dying units: gradient descent and RMSProp, norm and centring (Appendix C.4)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region
from nap.lab.claims.effects import FALLS, GROWS, TENTH, all_of, decide, difference, ratio
from nap.lab.claims.samples import Samples, Series, paired

TEXT, CAPTION = "Appendix C.4", "Appendix C.4, figure of trajectories"
OPTIMIZERS = ("GD", "RMSProp")
MONOTONE = Region(high=1.0)  # per cent of the increases: none but for rounding
WINNER = 50.0  # per cent of the squared length: one unit outweighs all the others


def dead(samples: Samples, arm: str) -> Series:
    """The share of dead units at every recorded step."""
    return samples.series("dead", along="step", arm=arm)


def slower(samples: Samples) -> Evidence:
    """Dead units above the start, mean over the walk: with norm relative to without."""
    normed, plain = paired(dead(samples, "GD + norm"), dead(samples, "GD"))
    ours, theirs = ((s.values - s.values[:, :1]).mean(1).clip(min=0) for s in (normed, plain))
    return ratio("dead units above the start, mean over steps, norm relative to none", ours, theirs, FALLS)


def still_accumulates(samples: Samples) -> Evidence:
    """The net loss of living units over the walk, in per cent of those at the start."""
    series = dead(samples, "GD + norm")
    start = series.values[:, 0]
    lost = 100 * (series.last() - start) / (1 - start)
    quantity = "net loss of living units from start to end, GD + norm"
    return decide(quantity, lost, Region(low=100 * TENTH), unit="% of living units")


def decreases(samples: Samples, arm: str, region: Region) -> Evidence:
    """The decreases of the number of dead units relative to its increases: 0 where it never falls."""
    steps = np.diff(dead(samples, arm).values, axis=1)
    rises, falls = steps.clip(min=0).sum(1), (-steps).clip(min=0).sum(1)
    if not rises.all():
        raise NotEnough(f"with {arm} no unit dies in some seeds")
    quantity = "decreases of the number of dead units, relative to its increases"
    return decide(quantity, 100 * falls / rises, region, unit="% of the increases")


def centring_helps(samples: Samples, optimizer: str) -> Evidence:
    """The dead units that centring avoids in the last steps: "little" is less than a tenth of them."""
    centred, normed = paired(*(dead(samples, f"{optimizer} + norm{c}") for c in (" + centring", "")))
    region = Region(high=100 * TENTH * float(normed.last().mean()))
    quantity = "dead units that centring avoids at the end"
    return difference(quantity, normed.last(), centred.last(), region, "% of units")


def share_of_largest(samples: Samples, arm: str) -> Series:
    """The largest pre-activation's share of the squared length."""
    return samples.series("largest_share", along="step", arm=arm)


def winner(samples: Samples, optimizer: str) -> Evidence:
    """The largest unit's share of the squared length in the last steps: above half, it outweighs the rest."""
    largest = share_of_largest(samples, f"{optimizer} + norm + centring").last()
    quantity = f"largest unit's share of the squared length at the end, {optimizer}"
    return decide(quantity, 100 * largest, Region(low=WINNER), unit="% of squared length")


def concentrates(samples: Samples, optimizer: str) -> Evidence:
    """The largest unit's share with centring relative to without."""
    names = (f"{optimizer} + norm + centring", f"{optimizer} + norm")
    centred, normed = paired(*(share_of_largest(samples, name) for name in names))
    quantity = f"largest unit's share of the squared length, centring relative to none, {optimizer}"
    return ratio(quantity, centred.last(), normed.last(), GROWS)


def strongest(cases: Iterable[Evidence]) -> Evidence:
    """The case with the largest effect: the paper says that it can happen, not under which optimizer."""
    return max(cases, key=lambda case: case.effect or 0)


CLAIMS = (
    Claim(
        "walk.plain-monotone",
        "Without normalization, dead units only accumulate, under GD and under RMSProp.",
        TEXT,
        lambda s: all_of({arm: decreases(s, arm, MONOTONE) for arm in OPTIMIZERS}),
    ),
    Claim(
        "walk.gd-norm-slower",
        "Under GD, normalization slows the accumulation of dead units.",
        TEXT,
        slower,
    ),
    Claim(
        "walk.gd-norm-accumulates",
        "Under GD, dead units still accumulate with normalization.",
        TEXT,
        still_accumulates,
    ),
    Claim(
        "walk.rmsprop-norm-not-monotone",
        "Under RMSProp with normalization, the number of dead units does not only rise.",
        TEXT,
        lambda s: decreases(s, "RMSProp + norm", Region(low=100 * TENTH)),
    ),
    Claim(
        "walk.centring-does-little",
        "Centring does little against dead units.",
        CAPTION,
        lambda s: all_of({name: centring_helps(s, name) for name in OPTIMIZERS}),
    ),
    Claim(
        "walk.centring-winner-takes-all",
        "With centring, a single unit can outweigh all others.",
        CAPTION,
        lambda s: strongest(winner(s, name) for name in OPTIMIZERS),
    ),
    Claim(
        "walk.centring-concentrates",
        "With centring, the largest unit can have a larger share than with normalization alone.",
        CAPTION,
        lambda s: strongest(concentrates(s, name) for name in OPTIMIZERS),
    ),
)
