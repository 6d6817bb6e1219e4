"""The settings of image classifiers that learn from files: typed, documented, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import nap
from nap.lab.models.presets import RESNET50
from nap.lab.seeds import check_seeds
from nap.validation import check_range as check


@dataclass(frozen=True)
class ImageNetConfig:
    """A residual network, images in files, and how they are learnt."""

    data: Literal["imagenet", "cifar10", "digits"] = "imagenet"
    """imagenet; or a stand-in, which is written to files and read like it: cifar10 or digits"""
    images: str = ""
    """folder of ImageNet's files: train/ and val/, or parquet shards; without it $NAP_DATA/imagenet"""
    blocks: tuple[int, ...] = RESNET50
    """residual blocks of each stage"""
    width: int = 64
    """channels of the first layer"""
    small_stem: bool = False
    """the first layer keeps the size of the image, which is small"""
    size: int = 224
    """pixels of an image's side, as the network sees it"""
    resize: int = 256
    """pixels of the shorter side that a test image is scaled to before its middle is taken"""
    smallest: float = 0.08
    """smallest share of an image's area that a random part of it has"""
    flip: bool = True
    """half of the images are mirrored"""
    batch_size: int = 256
    """images in an update, of all processes together"""
    epochs: int = 90
    """times that all images are seen"""
    every: int = 1
    """epochs between two rows"""
    learning_rate: float = 0.1
    """SGD's peak learning rate"""
    warm_up: float = 5.0
    """epochs until it is reached; a cosine follows, which is 0 after the last update"""
    momentum: float = 0.9
    """Nesterov's momentum"""
    weight_decay: float = 1e-4
    """L2 penalty on matrices and kernels"""
    decay_scales: bool = False
    """the penalty is on scales and offsets, too"""
    smoothing: float = 0.1
    """label smoothing"""
    seeds: int = 3
    """networks of each arm"""
    first_seed: int = 0
    """the first of their seeds; 100 and above are for tuning, and no claim reads them"""

    def __post_init__(self) -> None:
        for name in ("width", "size", "batch_size", "epochs", "every", "seeds"):
            check(self, name, getattr(self, name), 1)
        check(self, "resize", self.resize, self.size)
        check(self, "smallest", self.smallest, 1e-6, 1)
        check_seeds(self.first_seed, self.seeds)
        check(self, "learning_rate", self.learning_rate, 1e-12, 100.0)
        check(self, "warm_up", self.warm_up, 0, self.epochs)
        for name in ("momentum", "smoothing"):
            check(self, name, getattr(self, name), 0, 0.999)
        check(self, "weight_decay", self.weight_decay, 0)
        if not self.blocks or min(self.blocks) < 1:
            raise ValueError(f"blocks is {self.blocks}; name the blocks of each stage, as in 3 4 6 3")
        if self.images and self.data != "imagenet":
            raise ValueError(
                f"images is {self.images}, and data is {self.data}, which needs no folder; "
                "add --data imagenet, or leave --images out"
            )

    def rate(self, step: int, a_pass: int) -> float:
        """The learning rate of an update, counted from 0, where `a_pass` of them make an epoch.

        >>> viewing = ImageNetConfig(epochs=3, warm_up=1.0)
        >>> [round(viewing.rate(step, 4), 4) for step in range(12)]
        [0.025, 0.05, 0.075, 0.1, 0.097, 0.0883, 0.075, 0.0587, 0.0413, 0.025, 0.0117, 0.003]
        """
        rising = max(1, round(self.warm_up * a_pass))  # updates; the last of them is the cosine's first
        return nap.schedules.warmup_cosine_value(
            step,
            self.learning_rate,
            warmup_steps=rising - 1,
            total_steps=self.epochs * a_pass,
            init_value=self.learning_rate / rising,
            end_value=0.0,
        )
