"""The runs of minatar: the four agents of Figure 3, in MinAtar."""

from __future__ import annotations

from functools import partial

from nap.lab.experiments.fig3 import runs as fig3

runs = partial(fig3.runs, experiment="minatar")
