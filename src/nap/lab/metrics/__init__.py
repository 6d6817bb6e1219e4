"""Scores of agents in many games: on one scale, and aggregated.

    normalised = human_normalised("pong", 18.2)                   # 0 is random play, 1 a professional tester
    low, high = stratified_interval(scores, iqm, generator=...)   # scores: (seeds, games)

Needs numpy alone.
"""

from nap.lab.metrics.aggregate import AGGREGATES, iqm, mean, median, optimality_gap, stratified_interval
from nap.lab.metrics.atari57 import ATARI57, Reference, human_normalised, reference

__all__ = [
    "AGGREGATES",
    "ATARI57",
    "Reference",
    "human_normalised",
    "iqm",
    "mean",
    "median",
    "optimality_gap",
    "reference",
    "stratified_interval",
]
