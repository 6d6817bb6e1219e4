"""A small transformer that reads, for tests of `nap run` under torchrun; run as a program it is `nap`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from nap.lab.experiments import MODULES
from nap.lab.experiments.experiment import Experiment, Run
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.language.language_model_run import LanguageModelWork
from nap.lab.loops.language.settings import NAP, LanguageModelConfig

SMALL = LanguageModelConfig(
    blocks=2, heads=2, width=16, tokenizer="bytes", length=16, batch_size=8, grad_accum_steps=2, steps=7,
    eval_every=3, warmup_steps=2, learning_rate=1e-2, clip=0.3, valid_windows=12, seeds=1,
)  # fmt: skip


def runs(config: LanguageModelConfig) -> list[Run]:
    """A run for each seed."""
    whats: list[Any] = [
        NetworkRun(NAP, config, seed, {"experiment": "tiny-reading"}) for seed in range(config.seeds)
    ]
    return [
        Run(f"seed-{what.seed}", what, partial(LanguageModelWork, what), distributed=True) for what in whats
    ]


EXPERIMENT = Experiment(
    name="tiny-reading",
    title="reading",
    shows="One can read.",
    scales={"demo": SMALL},
    runs=runs,
    datasets={"demo": ""},
    folder="tiny-reading",
)

if __name__ == "__main__":
    from nap.lab.cli.main import main

    MODULES["tiny-reading"], MODULES["tiny"] = "tiny_reading", "tiny_experiment"
    sys.exit(main())
