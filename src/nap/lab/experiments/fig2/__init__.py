"""Figure 2, coupled networks: a free network and its twins on the sphere, on the same data (§4.1).

One population holds all of it: for every seed a free network and one projected twin for each way to
rescale the learning rate. The labels are CIFAR-10's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nap.lab.experiments.experiment import Experiment
from nap.lab.loops.population.settings import Network
from nap.validation import check_range

MODES = ("exact", "per layer", "global", "none")  # in which learning rates are rescaled


@dataclass(frozen=True)
class Fig2Config:
    """Settings of Figure 2."""

    data: str = "cifar10"
    """data set"""
    images: int = 10_000
    """how many of its training images; 0 for all"""
    network: Network = "cnn"
    """mlp or cnn"""
    width: int = 512
    """units of the hidden layers"""
    depth: int = 4
    """hidden layers of the MLP"""
    channels: tuple[int, ...] = (32, 32, 64, 64)
    """channels of the CNN's convolutions"""
    epochs: int = 40
    """passes over the images"""
    batch_size: int = 128
    """images in a batch"""
    learning_rate: float = 1e-3
    """Adam's learning rate, for the free network"""
    precision: Literal["float32", "float64"] = "float64"
    """in float32, rounding that grows in chaotic training would hide that the exact mode is exact"""
    probe: int = 512
    """images on which the twins' outputs are compared"""
    seeds: int = 5
    """free networks, each with a twin for every mode"""

    def __post_init__(self) -> None:
        for name in ("width", "depth", "epochs", "batch_size", "probe", "seeds"):
            check_range(self, name, getattr(self, name), 1)
        if not self.channels or min(self.channels) < 1:
            raise ValueError(f"channels is {self.channels}: name at least one, each at least 1")
        check_range(self, "images", self.images, 0)
        check_range(self, "learning_rate", self.learning_rate, 1e-12, 1e3)


PAPER = Fig2Config(images=0, epochs=100)
SMALL = Fig2Config(images=4096, batch_size=64, epochs=20)
DEMO = Fig2Config(
    data="digits",
    images=1024,
    network="mlp",
    width=64,
    depth=3,
    batch_size=32,
    epochs=40,
    learning_rate=3e-3,
    seeds=4,
)

EXPERIMENT = Experiment(
    name="fig2",
    order=2,
    package=__name__,
    title="coupled networks: implicit schedules made explicit (Figure 2)",
    shows="A projected network follows its free twin if its learning rates shrink as the free weights grow.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    datasets={"demo": "digits", "small": "cifar10", "paper": "cifar10"},
)
