"""The runs of Table 1 (ImageNet): one for each arm and seed."""

from __future__ import annotations

from nap.lab.experiments.common.runs import seeded_runs, settings_of
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.table1_imagenet import ARMS, Table1ImageNetConfig
from nap.lab.loops.supervised.imagenet_run import ImageNetWork
from nap.lab.loops.supervised.settings import ImageNetConfig


def runs(config: Table1ImageNetConfig) -> list[Run]:
    """A run for each arm and seed."""
    arms = [arm for arm in ARMS if arm.name in config.arms]
    tags = {"experiment": "table1-imagenet"}
    return seeded_runs(
        config, arms, settings_of(config, ImageNetConfig), ImageNetWork, tags, distributed=True
    )
