"""Figure 6 on MinAtar's games: drawn as on Atari's."""

from nap.lab.experiments.fig6.figure import LOOKS, figures, missing

__all__ = ["LOOKS", "figures", "missing"]
