"""The runs of the random strings: one for each optimizer treatment, arm and seed."""

from __future__ import annotations

from nap.lab.aliases import slug
from nap.lab.experiments.common.runs import at_task_changes, seeded_runs, settings_of
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.strings import ARMS, StringsConfig
from nap.lab.loops.language.settings import MemorizationConfig, MemorizationRunConfig, with_weight_decay
from nap.lab.loops.language.string_run import MemorizationWork


def runs(config: StringsConfig) -> list[Run]:
    """A run for each treatment of the optimizer, arm and seed."""
    arms = [arm for arm in ARMS if arm.name in config.arms] + [
        with_weight_decay(d) for d in config.weight_decays
    ]
    tags = {"experiment": "strings", "chance": 1 / config.vocabulary}
    settings = vars(settings_of(config, MemorizationConfig))
    found: list[Run] = []
    for name, state, more in at_task_changes("", config.optimizer_state):
        one = MemorizationRunConfig(**settings, optimizer_state=state)
        prefix = f"{slug(name)}-" if name else ""
        found += seeded_runs(config, arms, one, MemorizationWork, tags | more, prefix=prefix)
    return found
