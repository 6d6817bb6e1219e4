"""From values by seed to a curve: mean over seeds, its 95 % interval, smoothing and thinning."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nap.lab.claims.bootstrap import student_quantile

SMOOTH_FROM = 60  # points; shorter curves are drawn as they are
MOST_POINTS = 120  # a panel is some 250 pixels wide
MOST_RAW_POINTS = 260
LEAST_SEEDS_FOR_A_BAND = 3
DECADES = (-300, 300)  # that a float can hold: the interval of three wild seeds may reach further


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


def curve(
    values: np.ndarray,
    x: np.ndarray,
    *,
    log: bool = False,
    zero: float = 0.0,
    fraction: bool = False,
    smooth: bool = True,
) -> Curve:
    """The curve through `values`, an array of (seeds, x) with NaN where there is nothing.

    With `log`, mean and interval are those of the logarithms; `zero` stands for 0, and where a seed has it
    there is no interval. What is never negative, or a `fraction`, has no interval beyond that. Long curves
    are thinned, and smoothed where that is allowed: it would blur sudden events.

    >>> found = curve(np.array([[1.0, 4.0], [3.0, 4.0], [2.0, 4.0]]), np.array([1, 2]))
    >>> found.y, found.high.round(2), found.seeds
    (array([2., 4.]), array([4.48, 4.  ]), 3)
    """
    some = ~np.isnan(values).all(axis=0)
    values, x = values[:, some], np.asarray(x, float)[some]
    seeds = int((~np.isnan(values).all(axis=1)).sum())
    never_negative, at_zero = not (values < 0).any(), (values == 0).any(axis=0, keepdims=True)
    if log:
        values = np.log10(np.maximum(values, zero))
    smooth = smooth and len(x) > SMOOTH_FROM
    raw_x, raw_y = _blocks(x[None], MOST_RAW_POINTS)[0], _blocks(mean(values)[None], MOST_RAW_POINTS)[0]
    if smooth:
        values = _moving_mean(values, window=2 * (len(x) // 50) + 1)
    most = MOST_POINTS if smooth else MOST_RAW_POINTS
    values, x = _blocks(values, most), _blocks(x[None], most)[0]
    middle = mean(values)
    half = interval(values)
    if log:
        half[_blocks(at_zero.astype(float), most)[0] > 0] = np.nan
    low, high = middle - half, middle + half
    if log:
        parts = (part.clip(*DECADES) for part in (middle, low, high, raw_y))
        middle, low, high, raw_y = (np.maximum(10.0**part, zero) for part in parts)
    if never_negative:
        low = np.maximum(low, 0.0)
    if fraction:
        high = np.minimum(high, 1.0)
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
    enough = n >= LEAST_SEEDS_FOR_A_BAND
    freedom = np.where(enough, n - 1, 1)
    quantile = np.array([student_quantile(0.975, int(of)) for of in freedom])
    return np.where(enough, quantile * error, np.nan)


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
