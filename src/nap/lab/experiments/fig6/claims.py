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
    advantage,
    gain,
    require_learning,
    scores,
    sharp_rise,
)
from nap.lab.experiments.fig6 import ENDS, ending_at
from nap.lab.metrics.aggregate import iqm

FASTEST, HALFWAY, _, SLOWEST = ARMS = tuple(map(ending_at, ENDS))
EARLY, HALF, LATE = (0.2, 0.3), (0.45, 0.55), (0.65, 0.75)  # the fastest decay has ended by 0.25
CAPTION, TEXT = "Figure 6, caption", "Appendix C.1"


def iqm_evidence(quantity: str, values: np.ndarray, region: Region, unit: str) -> Evidence:
    """The interquartile mean over seeds and games: (seeds, games)."""
    return decide(quantity, values, region, unit=unit, statistic=iqm, stratified=True)


def against(samples: Samples, ours: str, other: str, window: Window, region: Region) -> Evidence:
    """The score of one schedule minus that of another, in a part of training."""
    found = scores(samples, ours, other)
    part = "at the end of" if window == FINAL else f"around {50 * sum(window):.0f} % of"
    quantity = f"IQM over games {part} training, “{ours}” minus “{other}”"
    return advantage(quantity, found.during(window), region, found.unit)


def plateaus(samples: Samples) -> Evidence:
    """What the fastest decay gains in the second half: less than a tenth of its score by then."""
    found = scores(samples, FASTEST)
    half, end = (found.during(window)[:, 0] for window in (HALF, FINAL))
    region = Region(high=TENTH * require_learning(float(iqm(half)), FASTEST))
    return iqm_evidence(f"gain in the second half of training, “{FASTEST}”", end - half, region, found.unit)


def picks_up(samples: Samples) -> Evidence:
    """What the slowest decay gains in its last quarter, beyond 1.5 times that quarter's share of the gain."""
    found = scores(samples, SLOWEST)
    late, whole, share = gain(found, LATE, FINAL), gain(found, FIRST, FINAL), sharp_rise(LATE, FINAL)
    require_learning(float(iqm(whole)), SLOWEST)
    quantity = (
        f"gain in the last quarter of training, minus {100 * share:.0f} % of the whole gain, “{SLOWEST}”"
    )
    return iqm_evidence(quantity, late - share * whole, BETTER, found.unit)


def best_balance(samples: Samples) -> Evidence:
    """The mean score over training of the decay that ends halfway, minus the best of the others."""
    others = (arm for arm in ARMS if arm != HALFWAY)
    found = scores(samples, HALFWAY, *others)
    quantity = f"IQM over games, mean over training, “{HALFWAY}” minus the best other"
    return advantage(quantity, found.during(WHOLE), BETTER, found.unit)


def shift(samples: Samples) -> Evidence:
    """How much later a score is reached if the schedule ends later: the slope of a regression over four ends.

    The score is halfway from the start to the final score of the worst of the four. An agent that never
    reaches it counts as reaching it at the end of training. With "corresponding" shifts the slope is 1.
    """
    found = scores(samples, *ARMS)
    start, end = found.during(FIRST).mean((0, 1)), found.during(FINAL).mean(0).min(0)
    slopes = []
    for game, low, high in zip(found.games, start, end, strict=True):
        if high - low < 100 * LEARNT:
            continue
        times = np.stack([time_to_reach(found.curves[arm, game], (low + high) / 2) for arm in ARMS], 1)
        distance = np.array(ENDS) - np.mean(ENDS)
        slopes.append(times @ distance / (distance @ distance))
    if not slopes:
        raise NotEnough("in no game do all four schedules learn anything")
    quantity = "delay until half of the score is reached, relative to the delay of the schedule's end"
    return iqm_evidence(
        quantity, 100 * np.stack(slopes, 1), Region(low=100 * TENTH), "% of the schedule's delay"
    )


def time_to_reach(curve: Series, level: float) -> np.ndarray:
    """Per seed, the fraction of training after which a row first has this score."""
    above = curve.values >= level
    time = np.array(curve.points) / curve.points[-1]
    return np.where(above.any(1), time[above.argmax(1)], 1.0)


CLAIMS = (
    Claim(
        "fig6.fast-starts-better",
        "A fast decay of the learning rate scores more at first than a slow one.",
        f"{TEXT}; {CAPTION}",
        lambda s: against(s, FASTEST, SLOWEST, EARLY, BETTER),
    ),
    Claim(
        "fig6.fast-plateaus",
        "After a fast decay, progress stops: the second half of training adds less than a tenth.",
        CAPTION,
        plateaus,
    ),
    Claim(
        "fig6.fast-ends-lower",
        "A fast decay ends with a lower score than one that ends halfway.",
        TEXT,
        lambda s: against(s, FASTEST, HALFWAY, FINAL, WORSE),
    ),
    Claim(
        "fig6.whole-run-picks-up",
        "With a decay over all of training, scores rise significantly towards the end.",
        TEXT,
        picks_up,
    ),
    Claim(
        "fig6.whole-run-ends-lower",
        "A decay over all of training ends with a lower score than one that ends halfway.",
        TEXT,
        lambda s: against(s, SLOWEST, HALFWAY, FINAL, WORSE),
    ),
    Claim(
        "fig6.halfway-best",
        "A decay that ends halfway has the highest mean score over training.",
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
