"""Random strings, data set after data set: does a transformer keep memorising them? (Appendix C.3)"""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment, Tuning
from nap.lab.experiments.strings.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="strings",
    order=19,
    package=__name__,
    title="random strings, data set after data set, memorised by a transformer (Appendix C.3)",
    shows="A plain transformer memorises later strings less well; weight projection or weight decay keeps it "
    "able to learn.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "", "small": "", "paper": ""},
    tuning=Tuning(metric="accuracy", rates=(5e-4, 1e-3, 2e-3)),
)
