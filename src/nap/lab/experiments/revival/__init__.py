"""Dead units of an MLP after sudden changes of its task: who comes back (§3.1, Appendix C.4)."""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.revival.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="revival",
    order=13,
    package=__name__,
    title="dead units after task changes (Appendix C.4)",
    shows="With a norm in front of the nonlinearity, units that died at a change of task come back to life.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "digits", "small": "cifar10", "paper": "mnist"},
)
