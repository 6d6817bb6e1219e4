"""The arms that experiments compare: which norms, which projection, which method; values, not code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nap.validation import check_range

OutputRule = Literal["project", "free"]
AffineRule = Literal["decay", "joint", "free"]
METHODS = ("none", "L2", "L2 Init", "shrink and perturb", "ReDo", "leaky ReLU", "Langevin")


@dataclass(frozen=True)
class Strengths:
    """How strong each method is. The paper does not say; these are our choices (PAPER.md)."""

    l2: float = 1e-5
    """weight of ‖θ‖² in the loss"""
    l2_init: float = 1e-4
    """L2 Init, regenerative regularization: weight of ‖θ − θ₀‖² in the loss"""
    shrink: float = 0.8
    """shrink and perturb: what is left of the parameters at a task change"""
    perturb: float = 0.2
    """shrink and perturb: share of a fresh initialisation added"""
    redo_tau: float = 0.025
    """ReDo: dormancy score up to which a unit is recycled"""
    redo_every: int = 1000
    """ReDo: updates between two rounds"""
    leak: float = 0.01
    """leaky ReLU: slope below zero"""
    noise: float = 0.1
    """Langevin: standard deviation of the noise on each update, in learning rates"""

    def __post_init__(self) -> None:
        check_range(self, "redo_every", self.redo_every, 1)
        for name in ("l2", "l2_init", "perturb", "redo_tau", "noise"):
            check_range(self, name, getattr(self, name), 0)
        for name in ("shrink", "leak"):
            check_range(self, name, getattr(self, name), 0, 1)


@dataclass(frozen=True)
class Arm:
    """One way to train: what a line in a figure stands for."""

    name: str
    norm: Literal["none", "layer", "rms"] = "none"
    project: Literal["never", "task", "step"] = "never"
    output: OutputRule = "project"
    affine: AffineRule = "decay"  # where projected; §3.3 for continual learning
    fresh: bool = False  # every task starts from a new initialisation
    method: str = "none"
    optimizer: Literal["Adam", "SGD"] = "Adam"
    learnable: bool = True  # the normalization layers have a learnable scale and offset
    decay: float | None = None  # of the affine rule "decay"; None takes the settings' --decay

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"there is no method {self.method!r}; there are {list(METHODS)}")
        if self.project != "never" and self.norm == "none":
            raise ValueError(
                f"{self.name}: projecting weights that no norm follows fixes the scale of the function; "
                "choose a norm"
            )


NO_NORM = Arm("no norm")
LAYER_NORM = Arm("LayerNorm", norm="layer")
RESCALED = Arm("LayerNorm, rescaled each task", norm="layer", project="task", affine="free")
NAP = Arm("NaP", norm="layer", project="step")
NAP_FREE = Arm("NaP, affine free", norm="layer", project="step", affine="free")
NAP_JOINT = Arm("NaP, affine joint", norm="layer", project="step", affine="joint")
NAP_WEAK_PULL = Arm("NaP, affine pulled 1e-4", norm="layer", project="step", decay=1e-4)
NAP_PULL = Arm("NaP, affine pulled 1e-3", norm="layer", project="step", decay=1e-3)
NAP_NO_AFFINE = Arm("NaP, no affine", norm="layer", project="step", affine="free", learnable=False)
FRESH = Arm("fresh", norm="layer", fresh=True)
FRESH_NO_NORM = Arm("fresh, no norm", fresh=True)
