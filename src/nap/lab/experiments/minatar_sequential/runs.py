"""The runs of minatar-sequential: the sequence of Figure 5, in MinAtar."""

from __future__ import annotations

from functools import partial

from nap.lab.experiments.fig5_sequential import runs as fig5_sequential

runs = partial(fig5_sequential.runs, experiment="minatar-sequential")
