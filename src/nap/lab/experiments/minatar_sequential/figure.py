"""Figure 5 (left) on MinAtar's games: drawn as on Atari's."""

from nap.lab.experiments.fig5_sequential.figure import LOOKS, figures, missing

__all__ = ["LOOKS", "figures", "missing"]
