"""Figure 4, robustness to nonstationarity: two networks, seven methods, each with and without NaP (§5.1).

LayerNorm without projection is one more arm: what of NaP's effect is the normalization's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from nap.lab.aliases import slug
from nap.lab.experiments.arm_runs import arm_run, at_task_changes
from nap.lab.experiments.experiment import Experiment, Run, Tuning
from nap.lab.loops.population.arms import LAYER_NORM, Arm, Strengths
from nap.lab.loops.population.settings import (
    Network,
    OptimizerState,
    Projected,
    StreamKind,
    TaskChanges,
    Tasks,
    continual,
)
from nap.validation import check_range

HIDDEN = {"mlp": 512, "cnn": 256}
Method = Literal["none", "L2", "regenerative", "shrink and perturb", "ReDo", "leaky ReLU", "Langevin"]


@dataclass(frozen=True)
class Robustness(Tasks, Projected, Strengths, TaskChanges):
    """Settings of Figure 4."""

    networks: tuple[Network, ...] = ("mlp", "cnn")
    """networks to train"""
    streams: tuple[StreamKind, ...] = ("random labels",)
    """what changes from task to task, each in turn"""
    methods: tuple[Method, ...] = get_args(Method)
    """methods to compare"""
    layer_norm: bool = True
    """one more arm: LayerNorm alone, without projection and without a method"""
    narrow: int = 1
    """divides the networks' widths (512 and 256), for a quick look"""

    def __post_init__(self) -> None:
        for part in (Tasks, Projected, Strengths, TaskChanges):
            part.__post_init__(self)
        check_range(self, "narrow", self.narrow, 1, min(HIDDEN.values()))


def runs(config: Robustness) -> list[Run]:
    """Networks × streams × treatments of the optimizer × (methods without and with NaP, LayerNorm)."""
    arms = [_arm(config, method, nap) for method in config.methods for nap in (False, True)]
    arms += [LAYER_NORM] if config.layer_norm else []
    return [
        run
        for network in config.networks
        for stream in config.streams
        for arm in arms
        for run in _runs(config, network, stream, arm)
    ]


def _arm(config: Robustness, method: str, nap: bool) -> Arm:
    arm = Arm(f"NaP + {method}" if nap else method, method=method)
    return config.nap(replace(arm, norm="layer", project="step")) if nap else arm


def _runs(config: Robustness, network: Network, stream: StreamKind, arm: Arm) -> list[Run]:
    nap = arm.project == "step"
    method = LAYER_NORM.name if arm == LAYER_NORM else arm.method
    tags = {"experiment": "fig4", "network": network, "stream": stream, "method": method, "nap": nap}
    width = HIDDEN[network] // config.narrow

    def run(name: str, state: OptimizerState, more: dict[str, str]) -> Run:
        settings = continual(config, network=network, stream=stream, width=width, optimizer_state=state)
        kind = "NaP" if nap else "LayerNorm" if arm == LAYER_NORM else "plain"
        made = arm_run(name, arm, settings, tags | more)
        # methods take the rate that is best without one: else each would hide how it changes the network
        return replace(made, group=slug(f"{network} {stream} {kind} {state}"), decides=arm.method == "none")

    return [run(*each) for each in at_task_changes(f"{network} {stream} {arm.name}", config.optimizer_state)]


PAPER = Robustness(
    images=0,
    streams=("random labels", "permuted labels"),
    tasks=200,
    epochs=256,  # 20M steps in all: 100,000 a task
    learning_rate=1e-4,
)
SMALL = replace(PAPER, images=1024, batch_size=32, tasks=30, epochs=20)
DIGITS = replace(SMALL, data="digits", networks=("mlp",), streams=("random labels",), narrow=4, depth=3)
DEMO = replace(DIGITS, images=512, narrow=8, tasks=12, epochs=15, learning_rate=1e-3, seeds=4)

EXPERIMENT = Experiment(
    name="fig4",
    title="robustness: seven methods with and without NaP (Figure 4)",
    shows="Without NaP the methods against plasticity loss differ widely; with it nearly all improve, and "
    "little difference is left between them.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=runs,
    needs={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
    folder="fig4",
    tuning=Tuning(metric="accuracy", rates=(1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)),
)
