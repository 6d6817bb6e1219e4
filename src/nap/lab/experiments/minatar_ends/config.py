"""Settings of minatar-ends at three scales."""

from __future__ import annotations

from nap.lab.experiments.common.rainbow.config import adapt
from nap.lab.experiments.fig6.config import Fig6Config
from nap.lab.experiments.minatar import config as minatar

DEMO, SMALL, PAPER = (adapt(Fig6Config, config) for config in (minatar.DEMO, minatar.SMALL, minatar.PAPER))
