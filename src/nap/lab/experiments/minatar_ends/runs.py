"""The runs of minatar-ends: the ends of Figure 6, in MinAtar."""

from __future__ import annotations

from functools import partial

from nap.lab.experiments.fig6 import runs as fig6

runs = partial(fig6.runs, experiment="minatar-ends")
