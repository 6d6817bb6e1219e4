"""The runs of the copied strings: one for each form, arm and seed."""

from __future__ import annotations

from nap.lab.aliases import slug
from nap.lab.experiments.common.runs import seeded_runs
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.induction import ARMS, InductionConfig
from nap.lab.loops.language.string_run import CopyingWork


def runs(config: InductionConfig) -> list[Run]:
    """A run for each form, arm and seed."""
    arms = [arm for arm in ARMS if arm.name in config.arms]
    found: list[Run] = []
    for form in config.forms:
        tags = {"experiment": "induction", "form": form}
        found += seeded_runs(config, arms, config.copying(form), CopyingWork, tags, prefix=f"{slug(form)}-")
    return found
