"""Figure 4, robustness to nonstationarity: two networks, seven methods, each with and without NaP (§5.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from nap.lab.experiments.arm_runs import arm_run
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.training.arms import Arm, Strengths
from nap.lab.training.settings import Network, Projected, StreamKind, Tasks, continual
from nap.methods.contract import check_range

HIDDEN = {"mlp": 512, "cnn": 256}
Method = Literal["none", "L2", "regenerative", "shrink and perturb", "ReDo", "leaky ReLU", "Langevin"]


@dataclass(frozen=True)
class Robustness(Tasks, Projected, Strengths):
    """Settings of Figure 4."""

    networks: tuple[Network, ...] = ("mlp", "cnn")
    """networks to train"""
    streams: tuple[StreamKind, ...] = ("random labels",)
    """what changes from task to task, each in turn"""
    methods: tuple[Method, ...] = get_args(Method)
    """methods to compare"""
    narrow: int = 1
    """divides the networks' widths (512 and 256), for a quick look"""

    def __post_init__(self) -> None:
        for part in (Tasks, Projected, Strengths):
            part.__post_init__(self)
        check_range(self, "narrow", self.narrow, 1, min(HIDDEN.values()))


def runs(config: Robustness) -> list[Run]:
    """Networks × streams × methods × (without, with NaP)."""
    return [
        _run(config, network, stream, method, nap)
        for network in config.networks
        for stream in config.streams
        for method in config.methods
        for nap in (False, True)
    ]


def _run(config: Robustness, network: Network, stream: StreamKind, method: str, nap: bool) -> Run:
    settings = continual(config, network=network, stream=stream, width=HIDDEN[network] // config.narrow)
    arm = Arm(f"NaP + {method}" if nap else method, method=method)
    if nap:
        arm = config.nap(replace(arm, norm="layer", project="step"))
    tags = {"experiment": "fig4", "network": network, "stream": stream, "method": method, "nap": nap}
    return arm_run(f"{network} {stream} {arm.name}", arm, settings, tags)


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
)
