"""The settings of sequence experiments: typed, documented, checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from nap.lab.loops.population.settings import OptimizerState
from nap.lab.models.transformer import BackboneNorm, Branches, Positions, Transformer
from nap.lab.seeds import check_seeds
from nap.validation import check_range as check


@dataclass(frozen=True)
class Network:
    """A transformer."""

    blocks: int = 4
    """blocks, each of attention and a hidden layer"""
    heads: int = 8
    """heads of each attention"""
    width: int = 256
    """width of the residual stream, d_model"""
    backbone_norm: BackboneNorm = "layer"
    """LayerNorm on what enters each block, which all arms have; or none"""
    branches: Branches = "unit"
    """size of each branch at the start: that of the stream, or its share of it, 1/√(2·blocks)"""
    positions: Positions = "learnt"
    """positions of tokens: a table that is learnt, or fixed sines"""

    def __post_init__(self) -> None:
        for name in ("blocks", "heads", "width"):
            check(self, name, getattr(self, name), 1)
        if self.width % self.heads:
            raise ValueError(f"width is {self.width}, which {self.heads} heads cannot share; change --heads")
        if self.positions == "sines" and self.width % 2:
            raise ValueError(f"width is {self.width}, which sines and cosines cannot share; make it even")

    def make(
        self, vocabulary: int, length: int, *, tied: bool = False, recompute: bool = False
    ) -> Callable[[], Transformer]:
        """What builds such a network for so many different tokens and so many positions."""
        return lambda: Transformer(
            vocabulary,
            length,
            blocks=self.blocks,
            heads=self.heads,
            width=self.width,
            norm=self.backbone_norm,
            branches=self.branches,
            positions=self.positions,
            tied=tied,
            recompute=recompute,
        )


@dataclass(frozen=True)
class Training:
    """Strings, and how they are learnt."""

    vocabulary: int = 256
    """different tokens"""
    batch_size: int = 128
    """strings in a batch"""
    learning_rate: float = 1e-3
    """Adam's learning rate, constant"""
    clip: float = 0.0
    """largest norm of the gradient; 0 for no limit"""
    seeds: int = 3
    """networks of each arm"""
    first_seed: int = 0
    """the first of their seeds; 100 and above are for tuning, and no claim reads them"""

    def __post_init__(self) -> None:
        for name in ("batch_size", "seeds"):
            check(self, name, getattr(self, name), 1)
        check_seeds(self.first_seed, self.seeds)
        check(self, "clip", self.clip, 0)
        check(self, "vocabulary", self.vocabulary, 2)
        check(self, "learning_rate", self.learning_rate, 1e-12, 1.0)


@dataclass(frozen=True)
class Memorising(Network, Training):
    """Random strings, a new data set for each task."""

    strings: int = 1024
    """strings of a data set"""
    length: int = 512
    """tokens of a string"""
    tasks: int = 10
    """data sets, one after the other"""
    steps: int = 1000
    """updates on each"""

    def __post_init__(self) -> None:
        Network.__post_init__(self)
        Training.__post_init__(self)
        for name in ("tasks", "steps"):
            check(self, name, getattr(self, name), 1)
        check(self, "length", self.length, 2)
        check(self, "strings", self.strings, self.batch_size)


@dataclass(frozen=True)
class MemorisingRun(Memorising):
    """All that the rows of one network depend on, but for its arm and seed."""

    optimizer_state: OptimizerState = "legacy"
    """Adam's moments and step count at a change of task: reset, or kept (legacy means kept)"""


@dataclass(frozen=True)
class Copying(Network, Training):
    """Strings that end with a copy of a piece of themselves; a fixed set."""

    strings: int = 4096
    """strings of the data set"""
    prefix: int = 412
    """random tokens that a string begins with"""
    suffix: int = 100
    """tokens that repeat a piece of them"""
    steps: int = 10_000
    """updates"""
    every: int = 100
    """updates between two rows"""

    def __post_init__(self) -> None:
        Network.__post_init__(self)
        Training.__post_init__(self)
        for name in ("steps", "every"):
            check(self, name, getattr(self, name), 1)
        check(self, "suffix", self.suffix, 3, self.prefix)
        check(self, "strings", self.strings, self.batch_size)


def copies(form: str, strings: int) -> dict[str, int]:
    """What a form says of `Copying`: two lengths, and how many strings, if not `strings`.

    >>> copies("412+100", strings=4096)
    {'strings': 4096, 'prefix': 412, 'suffix': 100}
    >>> copies("65536x100+50", strings=4096)
    {'strings': 65536, 'prefix': 100, 'suffix': 50}
    """
    found = re.fullmatch(r"(?:([0-9]+)x)?([0-9]+)\+([0-9]+)", form)
    if not found:
        raise ValueError(
            f"{form!r} is no form of strings: write the two lengths as in 412+100, "
            "or how many strings, too, as in 65536x100+50"
        )
    count, prefix, suffix = found.groups()
    return {"strings": int(count or strings), "prefix": int(prefix), "suffix": int(suffix)}
