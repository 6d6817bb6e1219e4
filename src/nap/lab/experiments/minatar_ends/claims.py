"""What Figure 6 shows of Atari, asked of MinAtar."""

from __future__ import annotations

from nap.lab.experiments.common.rainbow.claims import moved
from nap.lab.experiments.fig6 import claims as fig6

CLAIMS = moved(fig6.CLAIMS, "minatar-ends")
