"""Appendix C.1: Rainbow with NaP and a linear schedule that ends early, halfway, late or with training."""

from __future__ import annotations

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region
from nap.lab.claims.effects import LEARNT, TENTH, decide
from nap.lab.claims.samples import Samples, Series
from nap.lab.experiments.common.rainbow.claims import (
    BETTER,
    FINAL,
    FIRST,
    WHOLE,
    WORSE,
    Window,
    arms,
    gain,
    lead,
    learnt,
    scores,
    sharp,
)
from nap.lab.experiments.fig6 import ENDS, ending_at
from nap.lab.metrics.aggregate import iqm

FASTEST, HALFWAY, _, SLOWEST = ARMS = tuple(map(ending_at, ENDS))
EARLY, MIDDLE, LATE = (0.2, 0.3), (0.45, 0.55), (0.65, 0.75)  # the fastest decay has ended by 0.25
CAPTION, TEXT = "Figure 6, caption", "Appendix C.1"


def typical(what: str, values: np.ndarray, needs: Region, unit: str) -> Evidence:
    """The interquartile mean over seeds and games: (seeds, games)."""
    return decide(what, values, needs, unit=unit, statistic=iqm, stratified=True)


def against(samples: Samples, ours: str, other: str, window: Window, needs: Region) -> Evidence:
    """The score of one schedule less that of another, in a part of training."""
    found = scores(samples, arms(ours, other))
    part = "at the end of" if window == FINAL else f"around {50 * sum(window):.0f} % of"
    what = f"IQM over games {part} training, “{ours}” less “{other}”"
    return lead(what, found.at(window), needs, found.unit)


def plateaus(samples: Samples) -> Evidence:
    """What the fastest decay gains in the second half: less than a tenth of what it has by then."""
    found = scores(samples, arms(FASTEST))
    middle, end = (found.at(window)[:, 0] for window in (MIDDLE, FINAL))
    needs = Region(high=TENTH * learnt(float(iqm(middle)), FASTEST))
    return typical(f"gain in the second half of training, “{FASTEST}”", end - middle, needs, found.unit)


def picks_up(samples: Samples) -> Evidence:
    """What the slowest decay gains in its last quarter, beyond half again that quarter's share."""
    found = scores(samples, arms(SLOWEST))
    late, whole, share = gain(found, LATE, FINAL), gain(found, FIRST, FINAL), sharp(LATE, FINAL)
    learnt(float(iqm(whole)), SLOWEST)
    what = f"gain in the last quarter of training, less {100 * share:.0f} % of the whole gain, “{SLOWEST}”"
    return typical(what, late - share * whole, BETTER, found.unit)


def best_balance(samples: Samples) -> Evidence:
    """The mean score of all of training, halfway less the best of the others."""
    others = (arm for arm in ARMS if arm != HALFWAY)
    found = scores(samples, arms(HALFWAY, *others))
    what = f"IQM over games, mean of all of training, “{HALFWAY}” less the best other"
    return lead(what, found.at(WHOLE), BETTER, found.unit)


def shift(samples: Samples) -> Evidence:
    """How much later a score is reached where the schedule ends later, by a straight line over four ends.

    The score is halfway from where agents start to where the worst of the four ends up; who never reaches it
    counts as having reached it at the end of training. With "corresponding" shifts the slope is 1.
    """
    found = scores(samples, arms(*ARMS))
    start, end = found.at(FIRST).mean((0, 1)), found.at(FINAL).mean(0).min(0)
    slopes = []
    for game, low, high in zip(found.games, start, end, strict=True):
        if high - low < 100 * LEARNT:
            continue
        times = np.stack([reached(found.curves[arm, game], (low + high) / 2) for arm in ARMS], 1)
        distance = np.array(ENDS) - np.mean(ENDS)
        slopes.append(times @ distance / (distance @ distance))
    if not slopes:
        raise NotEnough("in no game do all four schedules learn anything")
    what = "delay until half of the score is reached, against delay of the schedule's end"
    return typical(what, 100 * np.stack(slopes, 1), Region(low=100 * TENTH), "% of the schedule's delay")


def reached(curve: Series, level: float) -> np.ndarray:
    """Per seed, the share of training after which a row first has this score."""
    above = curve.values >= level
    time = np.array(curve.points) / curve.points[-1]
    return np.where(above.any(1), time[above.argmax(1)], 1.0)


CLAIMS = (
    Claim(
        "fig6.fast-starts-better",
        "A fast decay of the learning rate scores better at first than a slow one.",
        f"{TEXT}; {CAPTION}",
        lambda s: against(s, FASTEST, SLOWEST, EARLY, BETTER),
    ),
    Claim(
        "fig6.fast-plateaus",
        "After a fast decay, progress stops: the second half of training adds next to nothing.",
        CAPTION,
        plateaus,
    ),
    Claim(
        "fig6.fast-ends-lower",
        "That plateau is lower than what a longer decay reaches.",
        TEXT,
        lambda s: against(s, FASTEST, HALFWAY, FINAL, WORSE),
    ),
    Claim(
        "fig6.whole-run-picks-up",
        "A decay over all of training picks up significantly towards the end.",
        TEXT,
        picks_up,
    ),
    Claim(
        "fig6.whole-run-ends-lower",
        "That leaves too little time at low rates: it ends lower than a decay that ends halfway.",
        TEXT,
        lambda s: against(s, SLOWEST, HALFWAY, FINAL, WORSE),
    ),
    Claim(
        "fig6.halfway-best",
        "A decay that ends halfway makes the best progress overall.",
        CAPTION,
        best_balance,
    ),
    Claim(
        "fig6.curves-shift",
        "Learning curves shift in time with the end of the schedule.",
        "Section 4.2",
        shift,
    ),
)
