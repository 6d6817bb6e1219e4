"""The settings of the stationary image experiments: typed, documented, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nap.lab.models.presets import HE, VGG16
from nap.lab.seeds import check_seeds
from nap.validation import check_range as check

Edges = Literal["black", "mean", "mirror"]


@dataclass(frozen=True)
class CifarConfig:
    """A network, images, and how they are learnt."""

    data: Literal["cifar10", "mnist", "fashion-mnist", "digits"] = "cifar10"
    """images"""
    held_out: int = 0
    """training images that are kept back and judged on, in place of the test images: to choose settings by"""
    channels: tuple[int, ...] = VGG16
    """channels of each convolution; 0 is a pooling"""
    mean: bool = False
    """the last map is averaged over all places; else it is flattened"""
    hidden: tuple[int, ...] = (512, 512)
    """units of each hidden layer after them"""
    batch_norm: bool = True
    """BatchNorm after each convolution, in all arms"""
    over: Literal["sample", "position"] = "sample"
    """what a norm that is put in takes together: channels and space, or the channels of each position"""
    dropout: float = 0.0
    """share of a hidden layer's units that are left out of each update"""
    weight_size: float = HE
    """deviation of convolutions' weights at the start, times √inputs; NaP keeps it, if weight_norm is 0"""
    weight_norm: float = 0.0
    """norm that NaP keeps each convolution's weights at; 0: that which they start with, by weight_size"""
    batch_size: int = 32
    """images in an update"""
    steps: int = 400_000
    """updates"""
    every: int = 10
    """passes over the images between two rows"""
    learning_rate: float = 0.025
    """SGD's learning rate at the start"""
    decays: tuple[float, ...] = (0.5, 0.75)
    """shares of training at which it falls to a tenth"""
    momentum: float = 0.9
    """Nesterov's momentum"""
    weight_decay: float = 5e-4
    """L2 penalty on matrices and kernels"""
    decay_scales: bool = False
    """the penalty is on scales and offsets, too"""
    smoothing: float = 0.0
    """label smoothing"""
    crop: int = 4
    """pixels beyond an image that random crops reach into"""
    edges: Edges = "black"
    """what is there: black, the mean of all images, or the image as in a mirror"""
    flip: bool = True
    """half of the images are mirrored"""
    seeds: int = 3
    """networks of each arm"""
    first_seed: int = 0
    """the first of their seeds; 100 and above are for tuning, and no claim reads them"""

    def __post_init__(self) -> None:
        for name in ("batch_size", "steps", "every", "seeds"):
            check(self, name, getattr(self, name), 1)
        check_seeds(self.first_seed, self.seeds)
        check(self, "learning_rate", self.learning_rate, 1e-12, 100.0)
        for name in ("momentum", "smoothing"):
            check(self, name, getattr(self, name), 0, 0.999)
        if not any(self.channels) or min(self.channels) < 0:
            raise ValueError(
                f"channels are {self.channels}; name those of each convolution, and 0 for a pooling, "
                "as in 64 64 0 128 128 0"
            )
        if min(self.hidden, default=1) < 1:
            raise ValueError(f"hidden is {self.hidden}; name the units of each layer, as in 512 512, or none")
        check(self, "dropout", self.dropout, 0, 0.99)
        if self.dropout and not self.hidden:
            raise ValueError(f"dropout is {self.dropout}, but there is no hidden layer; leave --dropout out")
        check(self, "weight_size", self.weight_size, 0.05, 20)  # beyond, eps counts
        if self.weight_norm and not 1 <= self.weight_norm <= 1000:  # below, eps counts
            raise ValueError(
                f"weight_norm is {self.weight_norm}; write a norm between 1 and 1000, or 0 for those that "
                "weights start with"
            )
        for name in ("weight_decay", "crop", "held_out"):
            check(self, name, getattr(self, name), 0)
        if list(self.decays) != sorted(self.decays) or not all(0 < share < 1 for share in self.decays):
            raise ValueError(f"decays are {self.decays}; write rising shares between 0 and 1, as in 0.5 0.75")

    def rate(self, step: int) -> float:
        """The learning rate of an update, counted from 0.

        >>> [CifarConfig(steps=100).rate(step) for step in (0, 49, 50, 99)]
        [0.025, 0.025, 0.0025, 0.00025]
        """
        falls = sum(step >= share * self.steps for share in self.decays)
        return self.learning_rate / 10**falls
