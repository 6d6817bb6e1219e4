"""Network statistics over the runs of Figure 4 (Appendix C.2), without any other method than NaP.

The appendix defines these statistics and makes no statement about their curves. The claims are those of the
rest of the paper: projection keeps the norm constant that otherwise grows (Section 3.2), and normalised
pre-activations guard against saturated units and low rank (Section 3.1).
"""

from __future__ import annotations

import numpy as np

from nap.lab.claims.claim import Claim, Evidence, Region, grouped
from nap.lab.claims.effects import CONSTANT, GROWS, all_of, difference, growth, ratio
from nap.lab.claims.samples import Samples, paired
from nap.lab.experiments.fig4.claims import GROUP_BY
from nap.lab.loops.population.settings import METHODS

FIGURE = "Figure of Appendix C.2"


def last_pair(samples: Samples, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """A metric in the last tasks, with NaP and without, on the seeds that both have."""
    both = paired(*(samples.series(metric, method="none", nap=nap) for nap in (True, False)))
    return both[0].last(), both[1].last()


def linearized(samples: Samples) -> Evidence:
    """Units that are off, or on, for the whole batch, with NaP minus without."""
    quantity = "linearized units in the last tasks, with NaP minus without"
    return difference(quantity, *last_pair(samples, "linearized_units"), Region(high=0), "% of the units")


def rank(samples: Samples) -> Evidence:
    """The rank of the penultimate features; those of a network that died, all zero, count as one."""
    with_nap, base = (np.maximum(one, 1) for one in last_pair(samples, "feature_rank"))
    return ratio("feature rank in the last tasks, with NaP relative to without", with_nap, base, GROWS)


CLAIMS = grouped(
    GROUP_BY,
    Claim(
        "stats.base-parameter-norm",
        "Without NaP, the parameter norm grows.",
        f"{FIGURE}; Section 3.2",
        lambda s: growth(s, "parameter_norm", GROWS, method="none", nap=False),
    ),
    Claim(
        "stats.nap-weight-norm",
        "With NaP, the norm of the weights stays constant with every method.",
        f"{FIGURE}; Section 3.3",
        lambda s: all_of({m: growth(s, "weight_norm", CONSTANT, method=m, nap=True) for m in METHODS}),
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
