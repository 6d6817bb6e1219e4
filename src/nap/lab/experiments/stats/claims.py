"""Network statistics over the runs of Figure 4 (Appendix C.2), without any other method than NaP.

The appendix defines these statistics and makes no statement about their curves. What the rest of the paper
says of them is checked here: projection holds the norm that otherwise grows (Section 3.2), and normalised
pre-activations guard against saturated units and low rank (Section 3.1).
"""

from __future__ import annotations

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, Region, apart
from nap.lab.claims.effects import CONSTANT, GROWS, decide, every, growth, ratio
from nap.lab.claims.samples import Samples, together
from nap.lab.experiments.fig4.claims import APART
from nap.lab.loops.population.settings import METHODS

FIGURE = "Figure of Appendix C.2"


def last_pair(samples: Samples, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """A metric in the last tasks, with NaP and without, on the seeds that both have."""
    both = together(*(samples.series(metric, method="none", nap=nap) for nap in (True, False)))
    return both[0].last(), both[1].last()


def linearized(samples: Samples) -> Evidence:
    """Units that are off, or on, for the whole batch."""
    with_nap, base = last_pair(samples, "linearized_units")
    points = 100 * (with_nap - base)
    what = "linearized units in the last tasks, with NaP less without"
    return decide(what, points, Region(high=0), unit="% of the units")


def rank(samples: Samples) -> Evidence:
    """The rank of the penultimate features; those of a network that died, all zero, count as one."""
    with_nap, base = (np.maximum(one, 1) for one in last_pair(samples, "feature_rank"))
    return ratio("feature rank in the last tasks, with NaP against without", with_nap, base, GROWS)


CLAIMS = apart(
    APART,
    Claim(
        "stats.base-parameter-norm",
        "Without NaP, the parameter norm grows.",
        f"{FIGURE}; Section 3.2",
        lambda s: growth(s, "parameter_norm", GROWS, method="none", nap=False),
    ),
    Claim(
        "stats.nap-weight-norm",
        "With NaP, the norm of the weights stays, whatever the method.",
        f"{FIGURE}; Section 3.3",
        lambda s: every({m: growth(s, "weight_norm", CONSTANT, method=m, nap=True) for m in METHODS}),
    ),
    Claim(
        "stats.nap-linearized-units",
        "With NaP, fewer units of the last hidden layer are linear on all of the data.",
        f"{FIGURE}; Section 3.1",
        linearized,
    ),
    Claim(
        "stats.nap-feature-rank",
        "With NaP, the features keep a higher rank.",
        f"{FIGURE}; Section 3.1",
        rank,
    ),
)
