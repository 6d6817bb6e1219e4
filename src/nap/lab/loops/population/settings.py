"""The settings of continual experiments: typed, documented, checked.

An experiment offers those that act in it, and no others. All of them together are `Continual`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from nap.lab.loops.population.arms import AffineRule, Arm, OutputRule, Strengths
from nap.lab.seeds import check_seeds
from nap.validation import check_range as check

StreamKind = Literal["random labels", "permuted labels", "permuted pixels"]
Network = Literal["mlp", "cnn"]
OptimizerState = Literal["keep", "reset", "legacy"]


@dataclass(frozen=True)
class Tasks:
    """Task after task on the same images, and how they are learnt."""

    data: str = "cifar10"
    """data set: digits, mnist, fashion-mnist or cifar10"""
    images: int = 10_000
    """how many of its training images; 0 for all"""
    depth: int = 4
    """hidden layers of the MLP"""
    channels: tuple[int, ...] = (32, 32, 32, 32)
    """channels of the CNN's convolutions, with a 2×2 max-pool after every second"""
    tasks: int = 40
    """how many tasks"""
    epochs: int = 20
    """passes over the images in each task"""
    batch_size: int = 128
    """images in a batch"""
    learning_rate: float = 1e-4
    """learning rate, constant"""
    probe: int = 512
    """images that the diagnostics are measured on"""
    seeds: int = 5
    """networks of each arm, trained at once"""
    first_seed: int = 0
    """the first of their seeds; 100 and above are for tuning, and no claim reads them"""

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
    """the optimizer's moments and step count at a change of task, for every arm alike, fresh networks
    included: keep, reset, or both, each in a run of its own (legacy: keep, but a new optimizer for fresh
    networks, as in runs made before there was this setting)"""

    def __post_init__(self) -> None:
        if not self.optimizer_state:
            raise ValueError("optimizer_state is empty: name keep, reset or both")


@dataclass(frozen=True)
class OneNetwork(Tasks):
    """Tasks of one kind for one network."""

    stream: StreamKind = "random labels"
    """what changes from task to task"""
    network: Network = "mlp"
    """mlp or cnn"""
    width: int = 512
    """units of each hidden layer of the MLP; of the CNN's one hidden layer"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "width", self.width, 1)


@dataclass(frozen=True)
class Projected:
    """How the arms with NaP project."""

    output: OutputRule = "project"
    """NaP: the output layer too, which no norm follows; or leave it free"""
    affine: AffineRule = "joint"
    """NaP: scales and offsets are projected jointly, free, or (decay) pulled back to (1, 0) as in §3.3"""
    decay: float = 1e-3
    """NaP, with --affine decay: how far they are pulled back at each projection"""

    def __post_init__(self) -> None:
        check(self, "decay", self.decay, 0, 1)

    def nap(self, arm: Arm) -> Arm:
        """`arm` by these rules, if it projects at each step."""
        return replace(arm, output=self.output, affine=self.affine) if arm.project == "step" else arm


@dataclass(frozen=True)
class Continual(OneNetwork, Projected, Strengths):
    """All that a continual run depends on, but for its arm."""

    optimizer_state: OptimizerState = "legacy"
    """the optimizer's moments and step count at a change of task, for every arm alike: kept or reset; legacy
    is what runs did before there was this setting: kept, but fresh networks start with a new optimizer"""

    def __post_init__(self) -> None:
        for part in (OneNetwork, Projected, Strengths):
            part.__post_init__(self)


def continual(config: Any, **more: Any) -> Continual:
    """The settings that `config` shares with `Continual`, and `more`."""
    shared = [field.name for field in fields(Continual) if hasattr(config, field.name)]
    return Continual(**{name: getattr(config, name) for name in shared} | more)
