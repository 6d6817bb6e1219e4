"""Figure 1, the case study: labels drawn anew over and over, and what that does to one network (§3.2).

Arms: the network as it is; with LayerNorm; with LayerNorm and every weight put back to its first norm
at each change of task; with NaP, where that happens after each update. Two more arms start every task
from a fresh initialisation: what a network that has lost nothing would do.
"""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments.arm_runs import arm_runs
from nap.lab.experiments.experiment import Experiment
from nap.lab.training.arms import FRESH, FRESH_NO_NORM, LAYER_NORM, NAP, NO_NORM, RESCALED
from nap.lab.training.settings import Continual

ARMS = (NO_NORM, LAYER_NORM, RESCALED, NAP, FRESH, FRESH_NO_NORM)
DQN_STYLE = (32, 32, 64, 64)


PAPER = Continual(
    network="cnn",
    channels=DQN_STYLE,
    width=512,
    images=0,
    tasks=500,  # §3.2
    epochs=20,  # not stated
    learning_rate=1e-4,  # as in §5.1; not stated for this figure
)
SMALL = replace(PAPER, images=1024, batch_size=32, tasks=40, epochs=20, learning_rate=1e-3)
DEMO = replace(
    SMALL, data="digits", network="mlp", width=128, depth=3, batch_size=64, tasks=40, epochs=12, seeds=3
)

EXPERIMENT = Experiment(
    name="fig1",
    title="case study: labels drawn anew, over and over (Figure 1)",
    shows="Growing weights end learning with and without LayerNorm; putting them back to their first norm "
    "keeps the performance of a fresh network.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=lambda config: arm_runs("fig1", ARMS, config),
    needs={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
    folder="fig1",
)
