"""Table 1, right: does NaP get in the way of a language model, or help it? (§5.2)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from nap.lab.experiments.experiment import Experiment, Tuning, arm_names
from nap.lab.loops.language.settings import (
    BASELINE,
    NAP,
    NAP_RMS,
    NORM_ONLY,
    NORM_ONLY_RMS,
    LanguageModelConfig,
)

ARMS = (BASELINE, NORM_ONLY, NAP, NORM_ONLY_RMS, NAP_RMS)
if TYPE_CHECKING:
    ArmName = str
else:
    ArmName = Literal[arm_names(ARMS)]
SETS = ("wikitext-103", "lambada", "siqa", "piqa")  # Pile: name a file of your own, pile=FILE


@dataclass(frozen=True)
class Table1LanguageConfig(LanguageModelConfig):
    """Settings of Table 1 (right)."""

    arms: tuple[ArmName, ...] = arm_names(ARMS)
    """arms to train"""


PAPER = Table1LanguageConfig(
    blocks=12,
    heads=12,
    width=1536,
    tie_embeddings=True,
    text=("c4",),
    max_tokens=2_000_000_000,  # 30,000 batches of 128 × 512 are 1.97 billion
    tokenizer="gpt-neox-tokenizer",
    eval_sets=SETS,
)
SMALL = replace(
    PAPER,
    blocks=8,
    heads=8,
    width=512,
    text=("text8", "c4-sample"),
    max_tokens=0,
    tokenizer="bpe-8192",
    batch_size=64,
    steps=1_500,
    eval_every=100,
    warmup_steps=150,
    learning_rate=1e-3,
)
DEMO = Table1LanguageConfig(
    blocks=2,
    heads=2,
    width=64,
    text=("python",),
    tokenizer="bpe-1024",
    length=64,
    batch_size=16,
    steps=200,
    eval_every=20,
    warmup_steps=20,
    learning_rate=1e-2,
    valid_windows=64,
    arms=arm_names(ARMS[:3]),
)

EXPERIMENT = Experiment(
    name="table1-language",
    order=17,
    package=__name__,
    title="a language model with and without NaP, on texts and questions (Table 1, right)",
    shows="NaP does not get in the way of a language model; on other texts and on questions it is slightly "
    "better than the baseline and than norms alone.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    datasets={
        "demo": "",
        "small": "text8, c4-sample, " + ", ".join(SETS),
        "paper": "gpt-neox-tokenizer, " + ", ".join(SETS),
    },
    tuning=Tuning(metric="valid_loss", rates=(2e-3, 4e-3, 8e-3), goal="lowest", over="last"),
)
