"""Figure 4, robustness to nonstationarity: two networks, seven methods, each with and without NaP (§5.1).

LayerNorm without projection is one more arm, by itself and with shrink and perturb: what of NaP's effect is
the normalization's.
"""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment, Tuning
from nap.lab.experiments.fig4.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="fig4",
    order=4,
    package=__name__,
    title="robustness: seven methods with and without NaP (Figure 4)",
    shows="Without NaP the methods against plasticity loss differ widely; with it nearly all improve, and "
    "little difference is left between them.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
    tuning=Tuning(metric="accuracy", rates=(1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)),
    readers=("stats",),
)
