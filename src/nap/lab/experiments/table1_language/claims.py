"""Table 1, right: a language model with NaP is as good as one without, and slightly better elsewhere."""

from __future__ import annotations

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, NotEnough, Region
from nap.lab.claims.effects import all_of, decide, difference
from nap.lab.claims.samples import Samples, paired
from nap.lab.experiments.experiment import arm_names
from nap.lab.experiments.table1_language import ARMS

TEXT, TABLE = "Section 5.2", "Table 1, right"
BASELINE, NORM, NAP = arm_names(ARMS[:3])
CLOSE = 0.5  # accuracy points; arms of the paper's table differ by 0.1 to 3


def matches_baseline(samples: Samples) -> Evidence:
    """Training accuracy in the last tenth of training: NaP is not worse than the baseline. Better is fine."""
    ours, theirs = paired(
        *(samples.series("accuracy", along="step", kind=None, arm=arm) for arm in (NAP, BASELINE))
    )
    quantity = "training accuracy at the end, NaP minus baseline"
    return difference(quantity, ours.last(), theirs.last(), Region(low=-CLOSE))


def best(samples: Samples, metric: str, quantity: str) -> Evidence:
    """In each eval set with this metric, NaP's result minus that of the better of the two others."""
    rows = samples.select(kind="evaluation")
    sets = [name for name in rows.unique("eval_set") if rows.where(eval_set=name).unique(metric)]
    if not sets:
        raise NotEnough(f"there are too few rows: none of an eval set has {metric!r}")
    return all_of({str(name): _ahead(samples, metric, quantity, name) for name in sets})


def _ahead(samples: Samples, metric: str, quantity: str, eval_set: str) -> Evidence:
    found = paired(
        *(
            samples.series(metric, along="step", min_points=1, kind="evaluation", eval_set=eval_set, arm=arm)
            for arm in (NAP, BASELINE, NORM)
        )
    )
    results = np.stack([100 * series.last() for series in found], 1)  # (seeds, arms)

    def gap(drawn: np.ndarray) -> np.ndarray:
        over_seeds = drawn.mean(1)
        return over_seeds[:, 0] - over_seeds[:, 1:].max(1)

    return decide(
        f"{quantity}, NaP minus the best other", results, Region(low=0), unit="accuracy points", statistic=gap
    )


CLAIMS = (
    Claim(
        "table1-language.no-interference",
        "NaP does not get in the way of learning: it matches the baseline's final training accuracy.",
        TEXT,
        matches_baseline,
    ),
    Claim(
        "table1-language.best-by-token",
        "NaP has the highest accuracy per token of the three on every eval set.",
        TABLE,
        lambda s: best(s, "accuracy", "accuracy per token"),
    ),
    Claim(
        "table1-language.best-by-question",
        "NaP answers most questions of the three in every set of questions.",
        TABLE,
        lambda s: best(s, "answer_accuracy", "questions answered"),
    ),
)
