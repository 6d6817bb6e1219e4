"""Figure 3: implicit against explicit learning-rate schedules in Rainbow (§4.2)."""

from __future__ import annotations

from nap.lab.experiments.experiment import Experiment
from nap.lab.experiments.fig3.config import DEMO, PAPER, SMALL

EXPERIMENT = Experiment(
    name="fig3",
    order=3,
    package=__name__,
    title="implicit against explicit learning-rate schedules in Rainbow (Figure 3)",
    shows="With fixed norms and a constant rate Rainbow learns worse than with LayerNorm alone; an explicit "
    "linear schedule makes up for it, and more.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    needs={"demo": "", "small": "", "paper": ""},
    readers=("fig5-suite",),
)
