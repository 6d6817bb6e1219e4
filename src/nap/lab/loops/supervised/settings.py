"""Arms and settings of image classifiers, on images in memory (CIFAR-10) and in files (ImageNet)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import nap
from nap.lab.models.presets import HE, RESNET50, VGG16
from nap.lab.seeds import check_seeds
from nap.validation import check_range as check

PaddingMode = Literal["zeros", "mean", "reflect"]


@dataclass(frozen=True)
class CifarConfig:
    """A network, images, and how it is trained on them."""

    data: Literal["cifar10", "mnist", "fashion-mnist", "digits"] = "cifar10"
    """images"""
    held_out: int = 0
    """hold out so many training images and evaluate on them, not on the test set, to choose settings"""
    channels: tuple[int, ...] = VGG16
    """channels of each convolution; 0 is a 2×2 max-pool"""
    global_pool: bool = False
    """average the last feature map over space; else flatten it"""
    hidden: tuple[int, ...] = (512, 512)
    """units of each hidden layer"""
    batch_norm: bool = True
    """BatchNorm after each convolution, in all arms"""
    norm_axes: Literal["sample", "position"] = "sample"
    """axes of an inserted norm: channels and space (sample), or the channels of each position"""
    dropout: float = 0.0
    """dropout rate of the hidden layers"""
    init_std_scale: float = HE
    """initial standard deviation of convolution weights, times √fan-in; NaP keeps that norm"""
    weight_norm: float = 0.0
    """norm that NaP keeps each convolution's weights at; 0: that of their initialization"""
    batch_size: int = 32
    """images in a batch"""
    steps: int = 400_000
    """updates"""
    eval_every: int = 10
    """epochs between two evaluations"""
    learning_rate: float = 0.025
    """SGD's learning rate at the start"""
    decays: tuple[float, ...] = (0.5, 0.75)
    """fractions of training after which the learning rate falls to a tenth"""
    momentum: float = 0.9
    """Nesterov momentum"""
    weight_decay: float = 5e-4
    """weight decay of matrices and kernels"""
    decay_scales: bool = False
    """weight decay of scales and offsets, too"""
    label_smoothing: float = 0.0
    """label smoothing"""
    crop_padding: int = 4
    """padding for random crops, in pixels"""
    padding_mode: PaddingMode = "zeros"
    """pad with zeros (black), the mean of all images, or the image reflected"""
    flip: bool = True
    """random horizontal flips"""
    seeds: int = 3
    """seeds of each arm"""
    first_seed: int = 0
    """the first seed; 100 and above are for tuning only"""

    def __post_init__(self) -> None:
        for name in ("batch_size", "steps", "eval_every", "seeds"):
            check(self, name, getattr(self, name), 1)
        check_seeds(self.first_seed, self.seeds)
        check(self, "learning_rate", self.learning_rate, 1e-12, 100.0)
        for name in ("momentum", "label_smoothing"):
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
        check(self, "init_std_scale", self.init_std_scale, 0.05, 20)  # beyond, eps counts
        if self.weight_norm and not 1 <= self.weight_norm <= 1000:  # below, eps counts
            raise ValueError(
                f"weight_norm is {self.weight_norm}; write a norm between 1 and 1000, or 0 for those that "
                "weights start with"
            )
        for name in ("weight_decay", "crop_padding", "held_out"):
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


@dataclass(frozen=True)
class ImageNetConfig:
    """A residual network, images in files, and how it is trained on them."""

    data: Literal["imagenet", "cifar10", "digits"] = "imagenet"
    """imagenet; or a stand-in, which is written to files and read like it: cifar10 or digits"""
    images: str = ""
    """folder of ImageNet's files: train/ and val/, or parquet shards; without it $NAP_DATA/imagenet"""
    blocks: tuple[int, ...] = RESNET50
    """residual blocks of each stage"""
    width: int = 64
    """channels of the first layer"""
    small_stem: bool = False
    """a first layer that keeps the size of images, for small ones"""
    image_size: int = 224
    """side of the network's input, in pixels"""
    resize: int = 256
    """shorter side of a test image before its center crop, in pixels"""
    min_crop_area: float = 0.08
    """smallest area of a random resized crop, as a fraction of the image"""
    flip: bool = True
    """random horizontal flips"""
    batch_size: int = 256
    """images in a batch"""
    epochs: int = 90
    """epochs"""
    eval_every: int = 1
    """epochs between two evaluations"""
    learning_rate: float = 0.1
    """SGD's peak learning rate"""
    warmup_epochs: float = 5.0
    """epochs of linear warm-up; then a cosine to 0"""
    momentum: float = 0.9
    """Nesterov momentum"""
    weight_decay: float = 1e-4
    """weight decay of matrices and kernels"""
    decay_scales: bool = False
    """weight decay of scales and offsets, too"""
    label_smoothing: float = 0.1
    """label smoothing"""
    seeds: int = 3
    """seeds of each arm"""
    first_seed: int = 0
    """the first seed; 100 and above are for tuning only"""

    def __post_init__(self) -> None:
        for name in ("width", "image_size", "batch_size", "epochs", "eval_every", "seeds"):
            check(self, name, getattr(self, name), 1)
        check(self, "resize", self.resize, self.image_size)
        check(self, "min_crop_area", self.min_crop_area, 1e-6, 1)
        check_seeds(self.first_seed, self.seeds)
        check(self, "learning_rate", self.learning_rate, 1e-12, 100.0)
        check(self, "warmup_epochs", self.warmup_epochs, 0, self.epochs)
        for name in ("momentum", "label_smoothing"):
            check(self, name, getattr(self, name), 0, 0.999)
        check(self, "weight_decay", self.weight_decay, 0)
        if not self.blocks or min(self.blocks) < 1:
            raise ValueError(f"blocks is {self.blocks}; name the blocks of each stage, as in 3 4 6 3")
        if self.images and self.data != "imagenet":
            raise ValueError(
                f"images is {self.images}, and data is {self.data}, which needs no folder; "
                "add --data imagenet, or leave --images out"
            )

    def rate(self, step: int, steps_per_epoch: int) -> float:
        """The learning rate of an update, counted from 0.

        >>> config = ImageNetConfig(epochs=3, warmup_epochs=1.0)
        >>> [round(config.rate(step, 4), 4) for step in range(12)]
        [0.025, 0.05, 0.075, 0.1, 0.097, 0.0883, 0.075, 0.0587, 0.0413, 0.025, 0.0117, 0.003]
        """
        warmup = max(1, round(self.warmup_epochs * steps_per_epoch))  # its last update is the cosine's first
        return nap.schedules.warmup_cosine_value(
            step,
            self.learning_rate,
            warmup_steps=warmup - 1,
            total_steps=self.epochs * steps_per_epoch,
            init_value=self.learning_rate / warmup,
            end_value=0.0,
        )


if TYPE_CHECKING:
    from nap.projection.policies import Choice


@dataclass(frozen=True)
class VisionArm:
    """One way to train a network: what a line of the table stands for."""

    name: str
    norm: bool = False
    project: bool = False
    output: Choice = "project"  # stored with each run, whatever the library's default is
    branches: Choice = "project"  # the last convolution of each residual branch
    translated: bool = False  # weights that a norm follows get the rates that weight decay makes of the plan


BASELINE = VisionArm("baseline")
NORM_ONLY = VisionArm("norm only", norm=True)
NAP = VisionArm("NaP", norm=True, project=True)
TRANSLATED = VisionArm("NaP translated", norm=True, project=True, translated=True)
