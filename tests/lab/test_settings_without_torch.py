"""Settings and arms name what a run is made of; they are importable where there is no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = [
    "nap.validation",
    "nap.lab.models.presets",
    "nap.lab.loops.population.settings",
    "nap.lab.loops.common.work",
    "nap.lab.loops.supervised.settings",
    "nap.lab.loops.language.settings",
    "nap.lab.loops.rainbow.settings",
    "nap.lab.datasets.catalog",
    "nap.lab.metrics",
]


@pytest.mark.parametrize("module", MODULES)
def test_importable_without_torch(module: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import {module}"  # None: an import of it fails
    subprocess.run([sys.executable, "-c", code], check=True)
