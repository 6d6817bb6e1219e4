"""Random strings: whether transformers go on memorising them (Appendix C.3).

"Later data sets" are all but the first, since single ones differ too much from one to the next. Runs that
keep the optimizer's state at a change of data set and runs that reset it get separate verdicts.
"""

from __future__ import annotations

import re

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region, grouped
from nap.lab.claims.effects import GROWS, TENTH, above_chance, difference, growth
from nap.lab.claims.samples import Samples, Series, paired
from nap.lab.experiments.strings import PAPERS_ARMS

CAPTION, TEXT = "Appendix C.3, caption", "Appendix C.3"
BASELINE, NORM, NAP, NO_SCALE = PAPERS_ARMS


def tenth_of(samples: Samples, accuracy: np.ndarray, arm: str) -> float:
    """A tenth of an arm's mean accuracy above chance, in points."""
    chance = samples.select(arm=arm).values("chance")[0]
    return TENTH * above_chance(accuracy, f"arm “{arm}”", chance)


def change(samples: Samples, arm: str, *, falls: bool) -> Evidence:
    """Online accuracy of the later data sets minus that of the first: down by a tenth, or not."""
    series = samples.series("accuracy", arm=arm)
    tenth = tenth_of(samples, series.values[:, :1], arm)
    region = Region(high=-tenth) if falls else Region(low=-tenth)
    quantity = f"online accuracy, mean of later data sets minus first, {arm}"
    return difference(quantity, later(series), series.values[:, 0], region)


def later(series: Series) -> np.ndarray:
    """Per seed, the mean of all data sets but the first."""
    return series.values[:, 1:].mean(1)


def lead(samples: Samples, arm: str, other: str, region: Region | None = None) -> Evidence:
    """Accuracy on the later data sets, one arm minus another: by default above a tenth of the other's."""
    ours, theirs = paired(samples.series("accuracy", arm=arm), samples.series("accuracy", arm=other))
    region = region or Region(low=tenth_of(samples, later(theirs), other))
    quantity = f"online accuracy of the later data sets, {arm} minus {other}"
    return difference(quantity, later(ours), later(theirs), region)


def weight_decay_arms(samples: Samples) -> list[str]:
    """The arms with weight decay, the strongest last."""
    names = {str(row["arm"]) for row in samples.select() if str(row["arm"]).startswith("weight decay")}
    if not names:
        raise NotEnough("there are no rows of an arm with weight decay")
    return sorted(names, key=lambda name: float(re.sub("[^0-9.e-]", "", name.removeprefix("weight decay"))))


def best_decay(samples: Samples) -> Evidence:
    """The best strength of weight decay on the later data sets, minus none."""
    best = max(weight_decay_arms(samples), key=lambda arm: later(samples.series("accuracy", arm=arm)).mean())
    return lead(samples, best, BASELINE)


def like_large_decay(samples: Samples) -> Evidence:
    """Accuracy of NaP on the later data sets: within a tenth of that with the strongest weight decay."""
    strongest = weight_decay_arms(samples)[-1]
    theirs = later(samples.series("accuracy", arm=strongest))
    tenth = tenth_of(samples, theirs, strongest)
    return lead(samples, NAP, strongest, Region(-tenth, tenth))


CLAIMS = grouped(
    ("optimizer_state",),
    Claim(
        "strings.baseline-falls",
        "A plain transformer memorises later strings less well than the first.",
        CAPTION,
        lambda s: change(s, BASELINE, falls=True),
    ),
    Claim(
        "strings.baseline-norm-grows",
        "The parameter norm of a plain transformer grows (ours: the paper shows no norms here).",
        "Section 3.2, for other networks",
        lambda s: growth(s, "parameter_norm", GROWS, arm=BASELINE),
    ),
    Claim(
        "strings.nap-kept",
        "With NaP, later strings are memorised as well as the first.",
        CAPTION,
        lambda s: change(s, NAP, falls=False),
    ),
    Claim(
        "strings.projection-robust",
        "NaP memorises later strings better than norms without projection.",
        TEXT,
        lambda s: lead(s, NAP, NORM),
    ),
    Claim(
        "strings.nap-robust",
        "NaP memorises later strings better than the plain transformer.",
        TEXT,
        lambda s: lead(s, NAP, BASELINE),
    ),
    Claim(
        "strings.decay-robust",
        "With the best weight decay, later strings are memorised better than without.",
        CAPTION,
        best_decay,
    ),
    Claim(
        "strings.like-large-decay",
        "NaP memorises later strings about as well as a large weight decay.",
        TEXT,
        like_large_decay,
    ),
    Claim(
        "strings.scale-slows",
        "An unconstrained learnable scale slows learning somewhat: NaP learns better without it.",
        TEXT,
        lambda s: lead(s, NO_SCALE, NAP, Region(low=0)),
    ),
)
