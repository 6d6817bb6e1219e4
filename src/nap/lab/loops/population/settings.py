"""Arms and settings of continual experiments. An experiment offers the settings that act in it.

All settings together are `Continual`. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from nap.lab.seeds import check_seeds
from nap.validation import check_range as check

StreamKind = Literal["random labels", "permuted labels", "permuted pixels"]
Network = Literal["mlp", "cnn"]
OptimizerState = Literal["keep", "reset", "legacy"]
OutputRule = Literal["project", "free"]
AffineRule = Literal["decay", "joint", "free"]
METHODS = ("none", "L2", "L2 Init", "shrink and perturb", "ReDo", "leaky ReLU", "Langevin")


@dataclass(frozen=True)
class Strengths:
    """How strong each method is. The paper does not say; these are our choices (PAPER.md)."""

    l2: float = 1e-5
    """L2: weight of ‖θ‖² in the loss"""
    l2_init: float = 1e-4
    """L2 Init: weight of ‖θ − θ₀‖² in the loss"""
    shrink: float = 0.8
    """shrink and perturb: factor of the parameters at a task change"""
    perturb: float = 0.2
    """shrink and perturb: share of a fresh initialization that is added"""
    redo_tau: float = 0.025
    """ReDo: dormancy score up to which a unit is recycled"""
    redo_every: int = 1000
    """ReDo: updates between two rounds of recycling"""
    leak: float = 0.01
    """leaky ReLU: slope below zero"""
    noise: float = 0.1
    """Langevin: standard deviation of each update's noise, in learning rates"""

    def __post_init__(self) -> None:
        check(self, "redo_every", self.redo_every, 1)
        for name in ("l2", "l2_init", "perturb", "redo_tau", "noise"):
            check(self, name, getattr(self, name), 0)
        for name in ("shrink", "leak"):
            check(self, name, getattr(self, name), 0, 1)


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


@dataclass(frozen=True)
class Tasks:
    """Task after task on the same images, and how they are learnt."""

    data: str = "cifar10"
    """data set: digits, mnist, fashion-mnist or cifar10"""
    images: int = 10_000
    """training images; 0 for all"""
    depth: int = 4
    """hidden layers of the MLP"""
    channels: tuple[int, ...] = (32, 32, 32, 32)
    """channels of the CNN's convolutions, with a 2×2 max-pool after every second"""
    tasks: int = 40
    """tasks, one after the other"""
    epochs: int = 20
    """epochs of each task"""
    batch_size: int = 128
    """images in a batch"""
    learning_rate: float = 1e-4
    """constant learning rate"""
    probe: int = 512
    """images that diagnostics are measured on"""
    seeds: int = 5
    """seeds of each arm, trained together"""
    first_seed: int = 0
    """the first seed; 100 and above are for tuning only"""

    def __post_init__(self) -> None:
        for name in ("depth", "tasks", "epochs", "batch_size", "probe", "seeds"):
            check(self, name, getattr(self, name), 1)
        check(self, "images", self.images, 0)
        check_seeds(self.first_seed, self.seeds)
        check(self, "learning_rate", self.learning_rate, 1e-12, 1e3)
        if not self.channels or min(self.channels) < 1:
            raise ValueError(f"channels is {self.channels}: name at least one, each at least 1")
        if 0 < self.images < self.batch_size:
            raise ValueError(
                f"batch_size is {self.batch_size}, more than the {self.images} images; lower --batch-size"
            )


@dataclass(frozen=True)
class TaskChanges:
    """What happens to the optimizer at a change of task."""

    optimizer_state: tuple[OptimizerState, ...] = ("reset",)
    """optimizer state at a task change: keep, reset, or both, in separate runs (legacy: as old runs)"""

    def __post_init__(self) -> None:
        if not self.optimizer_state:
            raise ValueError("optimizer_state is empty: name keep, reset or both")


@dataclass(frozen=True)
class OneNetwork(Tasks):
    """Tasks of one kind for one network."""

    stream: StreamKind = "random labels"
    """what changes from task to task"""
    network: Network = "mlp"
    """architecture"""
    width: int = 512
    """units of the MLP's hidden layers, or of the CNN's one hidden layer"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "width", self.width, 1)


@dataclass(frozen=True)
class Projected:
    """How the arms with NaP project."""

    output: OutputRule = "project"
    """NaP's output layer, which no norm follows: projected, or left free"""
    affine: AffineRule = "joint"
    """NaP's scales and offsets: pulled back to (1, 0) as in §3.3 (decay), projected jointly, or left free"""
    decay: float = 1e-3
    """with --affine decay: how far each projection pulls them back"""

    def __post_init__(self) -> None:
        check(self, "decay", self.decay, 0, 1)

    def nap(self, arm: Arm) -> Arm:
        """`arm` by these rules, if it projects at each step."""
        return replace(arm, output=self.output, affine=self.affine) if arm.project == "step" else arm


@dataclass(frozen=True)
class Continual(OneNetwork, Projected, Strengths):
    """All that a continual run depends on, but for its arm."""

    optimizer_state: OptimizerState = "legacy"
    """optimizer state at a task change; legacy: kept, but a fresh network starts with a new optimizer"""

    def __post_init__(self) -> None:
        for part in (OneNetwork, Projected, Strengths):
            part.__post_init__(self)


def continual(config: Any, **more: Any) -> Continual:
    """The settings that `config` shares with `Continual`, and `more`."""
    shared = [field.name for field in fields(Continual) if hasattr(config, field.name)]
    return Continual(**{name: getattr(config, name) for name in shared} | more)
