"""Random walks as a model of dying units: gradient descent and RMSProp, norm and centring (Appendix C.4)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region
from nap.lab.claims.effects import FALLS, GROWS, TENTH, decide, every, ratio
from nap.lab.claims.samples import Samples, Series, together

TEXT, CAPTION = "Appendix C.4", "Appendix C.4, figure of trajectories"
OPTIMIZERS = ("GD", "RMSProp")
MONOTONE = Region(high=1.0)  # per cent of the rise given back: none but for rounding
WINNER = 50.0  # per cent of the squared length: one unit outweighs all the others


def dead(samples: Samples, arm: str) -> Series:
    """The share of dead units at every recorded step."""
    return samples.series("dead", along="step", arm=arm)


def slower(samples: Samples) -> Evidence:
    """How far dead units are above the start, mean over the walk: with norm against without."""
    normed, plain = together(dead(samples, "GD + norm"), dead(samples, "GD"))
    ours, theirs = ((s.values - s.values[:, :1]).mean(1).clip(min=0) for s in (normed, plain))
    return ratio("dead units above the start, mean over steps, norm against none", ours, theirs, FALLS)


def still_accumulates(samples: Samples) -> Evidence:
    """Of the units that live at the start, the share that the walk loses on balance."""
    series = dead(samples, "GD + norm")
    start = series.values[:, 0]
    lost = 100 * (series.last() - start) / (1 - start)
    what = "living units lost from start to end, GD + norm"
    return decide(what, lost, Region(low=100 * TENTH), unit="% of living units")


def given_back(samples: Samples, arm: str, needs: Region) -> Evidence:
    """The falls of the number of dead units, against its rises: 0 where it only ever rises."""
    steps = np.diff(dead(samples, arm).values, axis=1)
    rises, falls = steps.clip(min=0).sum(1), (-steps).clip(min=0).sum(1)
    if not rises.all():
        raise NotEnough(f"with {arm} no unit dies in some seeds")
    what = "decreases of the number of dead units, against its increases"
    return decide(what, 100 * falls / rises, needs, unit="% of the increases")


def centring_helps(samples: Samples, optimizer: str) -> Evidence:
    """What centring takes from the dead units of the last steps: "little" is less than a tenth of them."""
    centred, normed = together(*(dead(samples, f"{optimizer} + norm{c}") for c in (" + centring", "")))
    needs = Region(high=100 * TENTH * float(normed.last().mean()))
    less = 100 * (normed.last() - centred.last())
    return decide("dead units that centring avoids at the end", less, needs, unit="% of units")


def share_of_largest(samples: Samples, arm: str) -> Series:
    """The largest pre-activation's share of the squared length."""
    return samples.series("largest_share", along="step", arm=arm)


def winner(samples: Samples, optimizer: str) -> Evidence:
    """Whether one unit outweighs all others in the last steps of a typical walk."""
    largest = share_of_largest(samples, f"{optimizer} + norm + centring").last()
    what = f"largest unit's share of the squared length at the end, {optimizer}"
    return decide(what, 100 * largest, Region(low=WINNER), unit="% of squared length")


def concentrates(samples: Samples, optimizer: str) -> Evidence:
    """The largest unit's share with centring against without."""
    names = (f"{optimizer} + norm + centring", f"{optimizer} + norm")
    centred, normed = together(*(share_of_largest(samples, name) for name in names))
    what = f"largest unit's share of the squared length at the end, centring against none, {optimizer}"
    return ratio(what, centred.last(), normed.last(), GROWS)


def stronger(cases: Iterable[Evidence]) -> Evidence:
    """The case with the larger effect: the paper says that it can happen, not under which optimizer."""
    return max(cases, key=lambda case: case.effect or 0)


CLAIMS = (
    Claim(
        "walk.plain-monotone",
        "Without norms, dead units only accumulate, under GD and under RMSProp.",
        TEXT,
        lambda s: every({arm: given_back(s, arm, MONOTONE) for arm in OPTIMIZERS}),
    ),
    Claim(
        "walk.gd-norm-slower",
        "Under GD, normalisation slows the accumulation of dead units.",
        TEXT,
        slower,
    ),
    Claim(
        "walk.gd-norm-accumulates",
        "Under GD, normalisation does not avoid dead units.",
        TEXT,
        still_accumulates,
    ),
    Claim(
        "walk.rmsprop-norm-not-monotone",
        "Under RMSProp, normalisation avoids that the number of dead units only rises.",
        TEXT,
        lambda s: given_back(s, "RMSProp + norm", Region(low=100 * TENTH)),
    ),
    Claim(
        "walk.centring-does-little",
        "Centring does little against dead units.",
        CAPTION,
        lambda s: every({name: centring_helps(s, name) for name in OPTIMIZERS}),
    ),
    Claim(
        "walk.centring-winner-takes-all",
        "Centring can let one unit win: it outweighs all others.",
        CAPTION,
        lambda s: stronger(winner(s, name) for name in OPTIMIZERS),
    ),
    Claim(
        "walk.centring-concentrates",
        "That is centring's doing: it can make the largest unit larger than normalisation alone does.",
        CAPTION,
        lambda s: stronger(concentrates(s, name) for name in OPTIMIZERS),
    ),
)
