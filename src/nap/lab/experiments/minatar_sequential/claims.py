"""What Figure 5 (left) shows of Atari, asked of MinAtar."""

from __future__ import annotations

from nap.lab.experiments.common.rainbow.claims import moved
from nap.lab.experiments.fig5_sequential import claims as fig5_sequential

CLAIMS = moved(fig5_sequential.CLAIMS, "minatar-sequential")
