"""Random strings: whether transformers go on memorising them (Appendix C.3).

Later data sets are all but the first: single ones differ too much from one to the next to stand for them.
Runs that keep the optimizer's state at a change of data set and runs that reset it are judged apart.
"""

from __future__ import annotations

import re

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region, apart
from nap.lab.claims.effects import GROWS, LEARNT, TENTH, decide, growth
from nap.lab.claims.samples import Samples, Series, together
from nap.lab.experiments.strings import PAPERS_ARMS

CAPTION, TEXT = "Appendix C.3, caption", "Appendix C.3"
BASELINE, NORM, NAP, NO_SCALE = PAPERS_ARMS


def skill(samples: Samples, accuracy: np.ndarray, whose: str) -> float:
    """Mean accuracy above chance in points; `NotEnough` where there is next to none to keep or to lose."""
    chance = samples.select(arm=whose).values("chance")[0]
    found = float(accuracy.mean()) - chance
    if found < LEARNT:
        raise NotEnough(
            f"arm “{whose}” hardly learns: {100 * accuracy.mean():.1f} %, by chance {100 * chance:.1f} %"
        )
    return 100 * found


def changes(samples: Samples, arm: str, *, falls: bool) -> Evidence:
    """Online accuracy of the later data sets less that of the first, against a tenth of what there was."""
    series = samples.series("accuracy", arm=arm)
    tenth = TENTH * skill(samples, series.values[:, :1], arm)
    needs = Region(high=-tenth) if falls else Region(low=-tenth)
    change = 100 * (later(series) - series.values[:, 0])
    return decide(
        f"online accuracy, mean of later data sets less first, {arm}", change, needs, unit="accuracy points"
    )


def later(series: Series) -> np.ndarray:
    """Per seed, the mean of all data sets but the first."""
    return series.values[:, 1:].mean(1)


def lead(samples: Samples, arm: str, other: str, needs: Region | None = None) -> Evidence:
    """Accuracy on the later data sets, one arm less another: more than a tenth of what that one has."""
    ours, theirs = together(samples.series("accuracy", arm=arm), samples.series("accuracy", arm=other))
    needs = needs or Region(low=TENTH * skill(samples, later(theirs), other))
    gap = 100 * (later(ours) - later(theirs))
    return decide(
        f"online accuracy of the later data sets, {arm} less {other}", gap, needs, unit="accuracy points"
    )


def decays(samples: Samples) -> list[str]:
    """The arms with weight decay, the strongest last."""
    names = {str(row["arm"]) for row in samples.select() if str(row["arm"]).startswith("weight decay")}
    if not names:
        raise NotEnough("there are no rows of an arm with weight decay")
    return sorted(names, key=lambda name: float(re.sub("[^0-9.e-]", "", name.removeprefix("weight decay"))))


def best_decay(samples: Samples) -> Evidence:
    """The strength of weight decay that is best in the later data sets, against none."""
    best = max(decays(samples), key=lambda arm: later(samples.series("accuracy", arm=arm)).mean())
    return lead(samples, best, BASELINE)


def like_large_decay(samples: Samples) -> Evidence:
    """NaP's later data sets against those of the strongest weight decay: as good within a tenth."""
    strongest = decays(samples)[-1]
    theirs = later(samples.series("accuracy", arm=strongest))
    tenth = TENTH * skill(samples, theirs, strongest)
    return lead(samples, NAP, strongest, Region(-tenth, tenth))


APART = ("optimizer_state",)
CLAIMS = apart(
    APART,
    Claim(
        "strings.baseline-falls",
        "A plain transformer loses plasticity: later strings are memorised less well.",
        CAPTION,
        lambda s: changes(s, BASELINE, falls=True),
    ),
    Claim(
        "strings.baseline-norm-grows",
        "Its parameters grow meanwhile (ours: the paper shows no norms here).",
        "Section 3.2, of other networks",
        lambda s: growth(s, "parameter_norm", GROWS, arm=BASELINE),
    ),
    Claim(
        "strings.nap-kept",
        "With NaP later strings are memorised as well as the first.",
        CAPTION,
        lambda s: changes(s, NAP, falls=False),
    ),
    Claim(
        "strings.projection-robust",
        "Weight projection makes it more robust than norms alone do.",
        TEXT,
        lambda s: lead(s, NAP, NORM),
    ),
    Claim(
        "strings.nap-robust",
        "Norms and projection make it more robust than the plain transformer.",
        TEXT,
        lambda s: lead(s, NAP, BASELINE),
    ),
    Claim(
        "strings.decay-robust",
        "Weight decay makes it more robust, too, at the best of the strengths.",
        CAPTION,
        best_decay,
    ),
    Claim(
        "strings.like-large-decay",
        "NaP ends about where a large weight decay does.",
        TEXT,
        like_large_decay,
    ),
    Claim(
        "strings.scale-slows",
        "A learnable scale that nothing holds slows learning somewhat: without it NaP learns better.",
        TEXT,
        lambda s: lead(s, NO_SCALE, NAP, Region(low=0)),
    ),
)
