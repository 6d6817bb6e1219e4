"""Figure 3: scores of four agents over frames, and statistics of their networks."""

from nap.lab.experiments.common.rainbow.figure import STYLES, figures

__all__ = ["EXPECTED_ARMS", "EXPECTED_BY", "STYLES", "figures"]

EXPECTED_ARMS = tuple(STYLES)
EXPECTED_BY = "game"
