"""Figure 1, the case study: one network learns new random labels, task after task (§3.2).

Arms: the plain network; with LayerNorm; with LayerNorm and every weight rescaled to its initial norm at each
change of task; with NaP, which does that after each update; NaP with other rules for scales and offsets. Two
more arms start every task from a new initialisation: the accuracy of a network that has lost nothing.
"""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment, Tuning
from nap.lab.experiments.fig1.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="fig1",
    order=1,
    package=__name__,
    title="case study: new random labels, task after task (Figure 1)",
    shows="Growing weights end learning with and without LayerNorm; rescaling them to their initial norm "
    "keeps the accuracy of a fresh network.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
    tuning=Tuning(metric="accuracy", rates=(1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)),
)
