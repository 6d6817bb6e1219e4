"""Arms and settings of transformers, and of what they learn: random strings, copied strings, a language."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from nap.lab.loops.population.settings import OptimizerState
from nap.lab.seeds import check_seeds
from nap.validation import check_range as check

Choice = Literal["project", "grow", "free"]  # as in nap.projection.policies, which needs torch


@dataclass(frozen=True)
class TransformerArm:
    """One way to train a transformer: what a line in a figure stands for."""

    name: str
    norm: bool = False  # normalization layers before nonlinearities, RMSNorm on queries and keys
    kind: Literal["layer", "rms"] = "layer"  # of those before nonlinearities
    project: bool = False
    scale: bool = True  # the inserted norms have a learnable scale (and offset)
    weight_decay: float = 0.0  # AdamW's
    output: Choice = "project"  # policies of three roles: stored with each run, whatever the default is
    embeddings: Choice = "project"
    branches: Choice = "project"


BASELINE = TransformerArm("baseline")
NORM_ONLY = TransformerArm("norm only", norm=True)
NAP = TransformerArm("NaP", norm=True, project=True)
NAP_NO_SCALE = TransformerArm("NaP, no scale", norm=True, project=True, scale=False)
NORM_ONLY_RMS = TransformerArm("norm only, RMSNorm", norm=True, kind="rms")
NAP_RMS = TransformerArm("NaP, RMSNorm", norm=True, kind="rms", project=True)
PROJECTION_ONLY = TransformerArm("projection only", project=True)


def with_weight_decay(weight_decay: float) -> TransformerArm:
    """The baseline with weight decay.

    >>> with_weight_decay(0.1).name
    'weight decay 0.1'
    """
    return TransformerArm(f"weight decay {weight_decay:g}", weight_decay=weight_decay)


@dataclass(frozen=True)
class TransformerConfig:
    """A transformer."""

    blocks: int = 4
    """transformer blocks"""
    heads: int = 8
    """attention heads"""
    width: int = 256
    """width of the residual stream (d_model)"""
    backbone_norm: Literal["layer", "none"] = "layer"
    """norm of the input of each block, in all arms"""
    branches: Literal["unit", "share"] = "unit"
    """initial size of each branch: that of the stream (unit), or its share of it, 1/√(2·blocks)"""
    positions: Literal["learnt", "sines"] = "learnt"
    """position embedding: learnt, or fixed sines"""

    def __post_init__(self) -> None:
        for name in ("blocks", "heads", "width"):
            check(self, name, getattr(self, name), 1)
        if self.width % self.heads:
            raise ValueError(f"width is {self.width}, which {self.heads} heads cannot share; change --heads")
        if self.positions == "sines" and self.width % 2:
            raise ValueError(f"width is {self.width}, which sines and cosines cannot share; make it even")


@dataclass(frozen=True)
class StringTraining:
    """What all experiments with strings share."""

    vocabulary: int = 256
    """size of the vocabulary"""
    batch_size: int = 128
    """sequences in a batch"""
    learning_rate: float = 1e-3
    """Adam's learning rate, constant"""
    clip: float = 0.0
    """gradient norm clipping; 0 for none"""
    seeds: int = 3
    """seeds of each arm"""
    first_seed: int = 0
    """the first seed; 100 and above are for tuning only"""

    def __post_init__(self) -> None:
        for name in ("batch_size", "seeds"):
            check(self, name, getattr(self, name), 1)
        check_seeds(self.first_seed, self.seeds)
        check(self, "clip", self.clip, 0)
        check(self, "vocabulary", self.vocabulary, 2)
        check(self, "learning_rate", self.learning_rate, 1e-12, 1.0)


@dataclass(frozen=True)
class MemorizationConfig(TransformerConfig, StringTraining):
    """Random strings, a new data set for each task."""

    strings: int = 1024
    """strings of a data set"""
    length: int = 512
    """tokens of a sequence: the context length"""
    tasks: int = 10
    """tasks: data sets, one after the other"""
    steps: int = 1000
    """updates on each"""

    def __post_init__(self) -> None:
        TransformerConfig.__post_init__(self)
        StringTraining.__post_init__(self)
        for name in ("tasks", "steps"):
            check(self, name, getattr(self, name), 1)
        check(self, "length", self.length, 2)
        check(self, "strings", self.strings, self.batch_size)


@dataclass(frozen=True)
class MemorizationRunConfig(MemorizationConfig):
    """All that the rows of one network depend on, but for its arm and seed."""

    optimizer_state: OptimizerState = "legacy"
    """Adam's moments and step count at a change of task: reset, or kept (legacy means kept)"""


@dataclass(frozen=True)
class CopyingConfig(TransformerConfig, StringTraining):
    """Strings that end with a copy of a piece of themselves; a fixed set."""

    strings: int = 4096
    """strings of a data set"""
    prefix: int = 412
    """random tokens that a string begins with"""
    suffix: int = 100
    """tokens at its end that repeat a piece of them"""
    steps: int = 10_000
    """updates"""
    eval_every: int = 100
    """updates between two rows"""

    def __post_init__(self) -> None:
        TransformerConfig.__post_init__(self)
        StringTraining.__post_init__(self)
        for name in ("steps", "eval_every"):
            check(self, name, getattr(self, name), 1)
        check(self, "suffix", self.suffix, 3, self.prefix)
        check(self, "strings", self.strings, self.batch_size)


def parse_form(form: str, strings: int) -> dict[str, int]:
    """The settings of `CopyingConfig` that a form names: two lengths, perhaps the number of strings.

    >>> parse_form("412+100", strings=4096)
    {'strings': 4096, 'prefix': 412, 'suffix': 100}
    >>> parse_form("65536x100+50", strings=4096)
    {'strings': 65536, 'prefix': 100, 'suffix': 50}
    """
    match = re.fullmatch(r"(?:([0-9]+)x)?([0-9]+)\+([0-9]+)", form)
    if not match:
        raise ValueError(
            f"{form!r} is no form of strings: write the two lengths as in 412+100, "
            "or how many strings, too, as in 65536x100+50"
        )
    count, prefix, suffix = match.groups()
    return {"strings": int(count or strings), "prefix": int(prefix), "suffix": int(suffix)}


@dataclass(frozen=True)
class LanguageModelConfig(TransformerConfig):
    """A language model: its text, its training, and what it is evaluated on."""

    text: tuple[str, ...] = ("python",)
    """texts to train on: python (its own help), c4, text8 and others of nap data list; or files:
    plain text, .jsonl with a field "text", WikiText's .tokens, .lines, each perhaps .gz"""
    tokenizer: str = "bpe-4096"
    """bytes; bpe-N, N byte pairs trained on the text; gpt-neox-tokenizer; or a tokenizer's JSON file"""
    max_tokens: int = 0
    """largest number of training tokens; 0 for all, of which C4 has too many"""
    length: int = 512
    """tokens of a sequence: the context length"""
    batch_size: int = 128
    """sequences in a batch"""
    grad_accum_steps: int = 1
    """gradient accumulation steps of a batch"""
    steps: int = 30_000
    """updates"""
    eval_every: int = 500
    """updates between two rows"""
    learning_rate: float = 2e-4
    """AdamW's peak learning rate"""
    warmup_steps: int = 1000
    """updates of linear warm-up; then a cosine to a tenth"""
    weight_decay: float = 0.1
    """AdamW's weight decay, of matrices and embeddings"""
    clip: float = 1.0
    """gradient norm clipping"""
    valid_windows: int = 64
    """held-out sequences for the validation loss of each row; 0 for all"""
    eval_sets: tuple[str, ...] = ()
    """sets to evaluate on at the end, besides held-out documents: texts, lambada, piqa, siqa; or NAME=FILE"""
    max_eval_examples: int = 0
    """largest number of sequences or questions of each eval set; 0 for all"""
    tie_embeddings: bool = False
    """tie the output layer to the token embedding"""
    activation_checkpointing: bool = False
    """recompute activations in the backward pass, to save memory"""
    seeds: int = 3
    """seeds of each arm"""
    first_seed: int = 0
    """the first seed; 100 and above are for tuning only"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("length", "batch_size", "grad_accum_steps", "steps", "eval_every", "seeds"):
            check(self, name, getattr(self, name), 1)
        check_seeds(self.first_seed, self.seeds)
        check(self, "learning_rate", self.learning_rate, 1e-12, 1.0)
        check(self, "warmup_steps", self.warmup_steps, 0, self.steps - 1)
        check(self, "weight_decay", self.weight_decay, 0)
        check(self, "clip", self.clip, 1e-6)
        for name in ("valid_windows", "max_eval_examples", "max_tokens"):
            check(self, name, getattr(self, name), 0)
        if not self.text:
            raise ValueError("text is empty; name a text to train on, as in --text python")
        if self.batch_size % self.grad_accum_steps:
            raise ValueError(
                f"batch_size is {self.batch_size}, which is no multiple of {self.grad_accum_steps} gradient "
                "accumulation steps; change --grad-accum-steps"
            )

    def rate(self, update: int) -> float:
        """The learning rate of an update, counted from 0."""
        from nap.schedules import warmup_cosine_value

        return warmup_cosine_value(
            update + 1,
            self.learning_rate,
            warmup_steps=self.warmup_steps,
            total_steps=self.steps,
            init_value=0.0,
            end_value=0.1 * self.learning_rate,
        )
