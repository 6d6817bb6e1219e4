"""From values by seed to a curve: mean over seeds, its 95 % interval, smoothing and thinning."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

SMOOTH_FROM = 60  # points; shorter curves are drawn as they are
MOST_POINTS = 120  # a panel is some 250 pixels wide
MOST_RAW_POINTS = 260
# 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom; beyond them the series is exact to 1e-3.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
LEAST_SEEDS_FOR_A_BAND = 3


@dataclass(frozen=True)
class Curve:
    """What gets drawn for one arm; `raw_y` is the mean over seeds before smoothing, empty without any."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    raw_x: np.ndarray
    raw_y: np.ndarray
    seeds: int

    def at_least(self, bottom: float) -> Curve:
        """The same curve with nothing below `bottom`: zero has no place of its own on a log axis."""
        y, low, high, raw_y = (part.clip(min=bottom) for part in (self.y, self.low, self.high, self.raw_y))
        return replace(self, y=y, low=low, high=high, raw_y=raw_y)


def curve(
    values: np.ndarray, x: np.ndarray, *, log: bool = False, fraction: bool = False, smooth: bool = True
) -> Curve:
    """The curve through `values`, an array of (seeds, x) with NaN where there is nothing.

    With `log`, mean and interval are those of the logarithms; a `fraction` cannot leave [0, 1]. Long
    curves are thinned, and smoothed where that is allowed: it would blur sudden events.

    >>> found = curve(np.array([[1.0, 2.0], [3.0, 2.0], [2.0, 2.0]]), np.array([1, 2]))
    >>> found.y, found.low.round(2), found.seeds
    (array([2., 2.]), array([-0.48,  2.  ]), 3)
    """
    some = ~np.isnan(values).all(axis=0)
    values, x = values[:, some], np.asarray(x, float)[some]
    seeds = int((~np.isnan(values).all(axis=1)).sum())
    if log:
        values = np.log10(values)
    smooth = smooth and len(x) > SMOOTH_FROM
    raw_x, raw_y = _blocks(x[None], MOST_RAW_POINTS)[0], _blocks(mean(values)[None], MOST_RAW_POINTS)[0]
    if smooth:
        values = _moving_mean(values, window=2 * (len(x) // 50) + 1)
    most = MOST_POINTS if smooth else MOST_RAW_POINTS
    values, x = _blocks(values, most), _blocks(x[None], most)[0]
    middle = mean(values)
    half = interval(values)
    low, high = middle - half, middle + half
    if log:
        middle, low, high, raw_y = (10.0**part for part in (middle, low, high, raw_y))
    if fraction:
        low, high = low.clip(0, 1), high.clip(0, 1)
    nothing = np.empty(0)
    return Curve(x, middle, low, high, raw_x if smooth else nothing, raw_y if smooth else nothing, seeds)


def mean(values: np.ndarray) -> np.ndarray:
    """Mean over seeds (axis 0) of what is there; NaN where nothing is."""
    there = ~np.isnan(values)
    n = there.sum(axis=0)
    return np.where(n > 0, np.where(there, values, 0.0).sum(axis=0) / np.maximum(n, 1), np.nan)


def interval(values: np.ndarray) -> np.ndarray:
    """Half width of Student's 95 % interval of the mean over seeds; NaN below three seeds."""
    n = (~np.isnan(values)).sum(axis=0)
    squares = np.where(np.isnan(values), 0.0, values - mean(values)) ** 2
    error = np.sqrt(squares.sum(axis=0) / np.maximum(n - 1, 1) / np.maximum(n, 1))
    quantile = np.array([t_quantile(int(seeds) - 1) if seeds > 1 else math.nan for seeds in n])
    return np.where(n >= LEAST_SEEDS_FOR_A_BAND, quantile * error, np.nan)


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t.

    >>> t_quantile(4), round(t_quantile(30), 3)
    (2.776, 2.042)
    """
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Centred mean over `window` points of each line; at the ends over those that there are."""
    there = ~np.isnan(values)
    kernel = np.ones(window)
    sums, counts = (
        np.array([np.convolve(line, kernel, mode="same") for line in part.astype(float)])
        for part in (np.where(there, values, 0.0), there)
    )
    return np.where(there, sums / np.maximum(counts, 1), np.nan)


def _blocks(values: np.ndarray, most: int) -> np.ndarray:
    """Means over blocks of neighbours, so that each line keeps at most `most` points."""
    size = math.ceil(values.shape[1] / most)
    if size <= 1:
        return values
    starts = range(0, values.shape[1], size)
    return np.stack([mean(values[:, start : start + size].T) for start in starts], axis=1)
