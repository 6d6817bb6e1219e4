"""Strings that end with a copy of a piece of themselves: do norms and projection get in the way? (C.3)"""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment, Tuning
from nap.lab.experiments.induction.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="induction",
    order=18,
    package=__name__,
    title="strings that end with a copy of a piece of themselves (Appendix C.3)",
    shows="Norms and projection do not keep a transformer from learning to copy; they speed it up.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "", "small": "", "paper": ""},
    tuning=Tuning(metric="unseen", rates=(5e-4, 1e-3, 2e-3)),
)
