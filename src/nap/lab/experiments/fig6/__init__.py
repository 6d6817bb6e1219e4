"""Figure 6: where the linear schedule of a Rainbow agent with NaP should end (Appendix C.1)."""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.fig6.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="fig6",
    order=8,
    package=__name__,
    title="a sweep over the end of the learning-rate schedule in Rainbow (Figure 6)",
    shows="The faster the rate falls the better at first, and the lower the score reached in the end.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "", "small": "", "paper": ""},
)
