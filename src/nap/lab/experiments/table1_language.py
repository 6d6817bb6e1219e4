"""Table 1, right: does NaP get in the way of a language model, or help it? (§5.2)"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from nap.lab.experiments.experiment import Experiment, Run, Tuning
from nap.lab.experiments.seeded_runs import seeded_runs, settings_of
from nap.lab.loops.language.arms import BASELINE, NAP, NAP_RMS, NORM_ONLY, NORM_ONLY_RMS
from nap.lab.loops.language.language_model_run import LanguageModelWork
from nap.lab.loops.language.settings import LanguageModelConfig

ARMS = (BASELINE, NORM_ONLY, NAP, NORM_ONLY_RMS, NAP_RMS)
ArmName = Literal["baseline", "norm only", "NaP", "norm only, RMSNorm", "NaP, RMSNorm"]
SETS = ("wikitext-103", "lambada", "siqa", "piqa")  # Pile: name a file of your own, pile=FILE


@dataclass(frozen=True)
class Language(LanguageModelConfig):
    """Settings of Table 1 (right)."""

    arms: tuple[ArmName, ...] = get_args(ArmName)
    """arms to train"""


def runs(config: Language) -> list[Run]:
    """A run for each arm and seed."""
    arms = [arm for arm in ARMS if arm.name in config.arms]
    tags = {"experiment": "table1-language"}
    return seeded_runs(
        config, arms, settings_of(config, LanguageModelConfig), LanguageModelWork, tags, spreads=True
    )


PAPER = Language(
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
DEMO = Language(
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
    arms=get_args(ArmName)[:3],
)

EXPERIMENT = Experiment(
    name="table1-language",
    title="a language model with and without NaP, on texts and questions (Table 1, right)",
    shows="NaP does not get in the way of a language model; on other texts and on questions it is slightly "
    "better than the baseline and than norms alone.",
    scales={"demo": DEMO, "small": SMALL, "paper": PAPER},
    runs=runs,
    needs={
        "demo": "",
        "small": "text8, c4-sample, " + ", ".join(SETS),
        "paper": "gpt-neox-tokenizer, " + ", ".join(SETS),
    },
    folder="table1-language",
    tuning=Tuning(metric="valid_loss", rates=(2e-3, 4e-3, 8e-3), goal="lowest", over="last"),
)
