"""Figure 4, robustness to nonstationarity: two networks, seven methods, each with and without NaP (§5.1).

LayerNorm without projection is one more arm, by itself and with shrink and perturb: what of NaP's effect is
the normalization's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nap.lab.experiments.experiment import Experiment, Tuning
from nap.lab.loops.population.settings import (
    LAYER_NORM,
    METHODS,
    Network,
    Projected,
    StreamKind,
    Strengths,
    TaskChanges,
    Tasks,
)
from nap.validation import check_range

HIDDEN = {"mlp": 512, "cnn": 256}
if TYPE_CHECKING:
    Method = str
else:
    Method = Literal[METHODS]


def layer_norm_with(method: str) -> str:
    """The name of the arm with LayerNorm, without projection and with this method.

    >>> layer_norm_with("none"), layer_norm_with("ReDo")
    ('LayerNorm', 'LayerNorm + ReDo')
    """
    return LAYER_NORM.name if method == "none" else f"{LAYER_NORM.name} + {method}"


@dataclass(frozen=True)
class Fig4Config(Tasks, Projected, Strengths, TaskChanges):
    """Settings of Figure 4."""

    networks: tuple[Network, ...] = ("mlp", "cnn")
    """networks to train"""
    streams: tuple[StreamKind, ...] = ("random labels",)
    """what changes from task to task, each in turn"""
    methods: tuple[Method, ...] = METHODS
    """methods to compare"""
    layer_norm: tuple[Method, ...] = ("none", "shrink and perturb")
    """arms with LayerNorm and without projection: by itself (none), and with these of the methods compared"""
    narrow: int = 1
    """divides the networks' widths (512 and 256), for a quick look"""

    def __post_init__(self) -> None:
        for part in (Tasks, Projected, Strengths, TaskChanges):
            part.__post_init__(self)
        check_range(self, "narrow", self.narrow, 1, min(HIDDEN.values()))


PAPER = Fig4Config(
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
    order=4,
    package=__name__,
    title="robustness: seven methods with and without NaP (Figure 4)",
    shows="Without NaP the methods against plasticity loss differ widely; with it nearly all improve, and "
    "little difference is left between them.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    datasets={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
    tuning=Tuning(metric="accuracy", rates=(1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3)),
    readers=("stats",),
)
