"""Strings with a copy at their end: whether norms and projection get in the way of copying (Appendix C.3)."""

from __future__ import annotations

from nap.lab.claims.claim import Claim, Evidence, Region, grouped
from nap.lab.claims.effects import all_of, decide, difference
from nap.lab.claims.samples import Samples, paired
from nap.lab.experiments.induction import PAPERS_ARMS

TEXT, CAPTION = "Appendix C.3", "Appendix C.3, caption"
BASELINE, PROJECTED, NORM, NAP, NO_SCALE = PAPERS_ARMS
LEARNT = 80.0  # per cent of the copied tokens; what comes before a copy often leaves a choice


def learns_to_copy(samples: Samples, *arms: str) -> Evidence:
    """Accuracy of copying in strings never seen in training, at its end: above the threshold in each arm."""
    last = {arm: 100 * samples.series("unseen", along="step", arm=arm).last() for arm in arms}
    region = Region(low=LEARNT)
    return all_of(
        {arm: decide("accuracy of copying, unseen strings", last[arm], region, unit="%") for arm in arms}
    )


def faster(samples: Samples, metric: str, *pairs: tuple[str, str]) -> Evidence:
    """The mean of an accuracy over training, in each pair the first arm minus the second."""
    cases = {}
    for arm, other in pairs:
        ours, theirs = paired(*(samples.series(metric, along="step", arm=name) for name in (arm, other)))
        quantity = f"{metric} accuracy, mean over training"
        cases[f"{arm} − {other}"] = difference(quantity, ours.mean(), theirs.mean(), Region(low=0))
    return all_of(cases)


WITH_NORM = ((NORM, BASELINE), (NAP, PROJECTED))
WITH_PROJECTION = ((PROJECTED, BASELINE), (NAP, NORM))
CLAIMS = grouped(
    ("form",),
    Claim(
        "induction.all-learn",
        "All four networks learn to find what the suffix copies, and to copy it.",
        TEXT,
        lambda s: learns_to_copy(s, BASELINE, PROJECTED, NORM, NAP),
    ),
    Claim(
        "induction.no-scale-learns",
        "With NaP and no learnable scale, the network still learns to copy.",
        CAPTION,
        lambda s: learns_to_copy(s, NO_SCALE),
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
