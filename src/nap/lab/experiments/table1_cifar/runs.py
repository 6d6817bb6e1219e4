"""The runs of Table 1 (CIFAR-10): one for each arm and seed."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.experiments.common.runs import seeded_runs, settings_of
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.table1_cifar import ARMS, Table1CifarConfig
from nap.lab.loops.supervised.cifar_run import CifarWork
from nap.lab.loops.supervised.settings import CifarConfig, VisionArm


def runs(config: Table1CifarConfig) -> list[Run]:
    """A run for each arm and seed."""
    arms = [arm for arm in ARMS if arm.name in config.arms]
    judged = f" (judged on {config.held_out} training images held out)" if config.held_out else ""
    tags = {"experiment": "table1-cifar", "data": config.data + judged}
    return [
        run
        for arm in arms
        for run in seeded_runs(
            config, [arm], _settings(config, arm), CifarWork, tags, seeds_per_run=config.seeds_per_run
        )
    ]


def _settings(config: Table1CifarConfig, arm: VisionArm) -> CifarConfig:
    """Of one arm: the norm of its weights is NaP's rate, while weight decay leads the others to their own."""
    settings = settings_of(config, CifarConfig)
    return settings if arm.project else replace(settings, weight_norm=0.0)
