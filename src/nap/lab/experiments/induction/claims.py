"""Strings with a copy at their end: whether norms and projection get in the way of copying (Appendix C.3)."""

from __future__ import annotations

from nap.lab.claims.claim import Claim, Evidence, Region, apart
from nap.lab.claims.effects import decide, every
from nap.lab.claims.samples import Samples, together
from nap.lab.experiments.induction import PAPERS_ARMS

TEXT, CAPTION = "Appendix C.3", "Appendix C.3, caption"
BASELINE, PROJECTED, NORM, NAP, NO_SCALE = PAPERS_ARMS
LEARNT = 80.0  # per cent of the copied tokens; what comes before a copy often leaves a choice
APART = ("form",)


def learnt(samples: Samples, *arms: str) -> Evidence:
    """Copying in strings never seen in training, at the end of it: each arm gets most of them right."""
    last = {arm: samples.series("unseen", along="step", arm=arm).last() for arm in arms}
    cases = {
        arm: decide("copying in unseen strings", 100 * found, Region(low=LEARNT), unit="%")
        for arm, found in last.items()
    }
    return every(cases)


def faster(samples: Samples, metric: str, *pairs: tuple[str, str]) -> Evidence:
    """The mean of an accuracy over all of training, in each pair the first arm less the second."""
    cases = {}
    for arm, other in pairs:
        ours, theirs = together(*(samples.series(metric, along="step", arm=name) for name in (arm, other)))
        gap = 100 * (ours.values.mean(1) - theirs.values.mean(1))
        what = f"{metric} accuracy, mean over training"
        cases[f"{arm} less {other}"] = decide(what, gap, Region(low=0), unit="accuracy points")
    return every(cases)


WITH_NORM = ((NORM, BASELINE), (NAP, PROJECTED))
WITH_PROJECTION = ((PROJECTED, BASELINE), (NAP, NORM))
CLAIMS = apart(
    APART,
    Claim(
        "induction.all-learn",
        "All four networks learn to find what the suffix copies, and copy it.",
        TEXT,
        lambda s: learnt(s, BASELINE, PROJECTED, NORM, NAP),
    ),
    Claim(
        "induction.no-scale-learns",
        "With norms and without a learnable scale it still learns to copy.",
        CAPTION,
        lambda s: learnt(s, NO_SCALE),
    ),
    Claim(
        "induction.norm-speeds-retrieval",
        "Norms speed up learning to copy, with and without projection.",
        TEXT,
        lambda s: faster(s, "retrieval", *WITH_NORM),
    ),
    Claim(
        "induction.norm-speeds-memorisation",
        "Norms speed up learning the prefixes by heart, with and without projection.",
        TEXT,
        lambda s: faster(s, "memorisation", *WITH_NORM),
    ),
    Claim(
        "induction.projection-speeds-retrieval",
        "Projection speeds up learning to copy, with and without norms.",
        TEXT,
        lambda s: faster(s, "retrieval", *WITH_PROJECTION),
    ),
    Claim(
        "induction.projection-speeds-memorisation",
        "Projection speeds up learning the prefixes by heart, with and without norms.",
        TEXT,
        lambda s: faster(s, "memorisation", *WITH_PROJECTION),
    ),
)
