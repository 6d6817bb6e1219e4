"""The runs of Table 1 (right): one for each arm and seed."""

from __future__ import annotations

from nap.lab.experiments.common.runs import seeded_runs, settings_of
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.table1_language import ARMS, Table1LanguageConfig
from nap.lab.loops.language.language_model_run import LanguageModelWork
from nap.lab.loops.language.settings import LanguageModelConfig


def runs(config: Table1LanguageConfig) -> list[Run]:
    """A run for each arm and seed."""
    arms = [arm for arm in ARMS if arm.name in config.arms]
    tags = {"experiment": "table1-language"}
    return seeded_runs(
        config, arms, settings_of(config, LanguageModelConfig), LanguageModelWork, tags, distributed=True
    )
