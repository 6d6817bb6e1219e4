"""From values by seed to a curve: mean over seeds, its 95 % interval, smoothing and thinning."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nap.lab.claims.bootstrap import student_quantile

SMOOTH_FROM = 60  # points; shorter curves are drawn as they are
MAX_POINTS = 120  # a panel is some 250 pixels wide
MAX_RAW_POINTS = 260
MIN_SEEDS = 3  # for an interval
DECADES = (-300, 300)  # that a float can hold: the interval of three outliers may reach further


@dataclass(frozen=True)
class Curve:
    """The mean over seeds of one arm with its 95 % interval; `raw_y` is the mean before smoothing, if any."""

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
    """The curve through `values` of shape (seeds, x), with NaN where a value is missing.

    Args:
        log: take mean and interval of the logarithms.
        zero: stands for 0 on a log axis; where a seed is 0 there is no interval.
        fraction: clip the interval to at most 1. An interval of values that are never negative starts at 0.
        smooth: long curves may be smoothed, not only thinned; it would blur sudden events.

    >>> mean_of = curve(np.array([[1.0, 4.0], [3.0, 4.0], [2.0, 4.0]]), np.array([1, 2]))
    >>> mean_of.y, mean_of.high.round(2), mean_of.seeds
    (array([2., 4.]), array([4.48, 4.  ]), 3)
    """
    measured = ~np.isnan(values).all(axis=0)
    values, x = values[:, measured], np.asarray(x, float)[measured]
    seeds = int((~np.isnan(values).all(axis=1)).sum())
    never_negative, at_zero = not (values < 0).any(), (values == 0).any(axis=0, keepdims=True)
    if log:
        values = np.log10(np.maximum(values, zero))
    smooth = smooth and len(x) > SMOOTH_FROM
    raw_x, raw_y = _blocks(x[None], MAX_RAW_POINTS)[0], _blocks(mean(values)[None], MAX_RAW_POINTS)[0]
    if smooth:
        values = _moving_mean(values, window=2 * (len(x) // 50) + 1)
    points = MAX_POINTS if smooth else MAX_RAW_POINTS
    values, x = _blocks(values, points), _blocks(x[None], points)[0]
    y, half_width = mean(values), interval(values)
    if log:
        half_width[_blocks(at_zero.astype(float), points)[0] > 0] = np.nan
    low, high = y - half_width, y + half_width
    if log:
        logs = (each.clip(*DECADES) for each in (y, low, high, raw_y))
        y, low, high, raw_y = (np.maximum(10.0**each, zero) for each in logs)
    if never_negative:
        low = np.maximum(low, 0.0)
    if fraction:
        high = np.minimum(high, 1.0)
    empty = np.empty(0)
    return Curve(x, y, low, high, raw_x if smooth else empty, raw_y if smooth else empty, seeds)


def mean(values: np.ndarray) -> np.ndarray:
    """Mean over seeds (axis 0), ignoring NaN; NaN where all are."""
    known = ~np.isnan(values)
    n = known.sum(axis=0)
    return np.where(n > 0, np.where(known, values, 0.0).sum(axis=0) / np.maximum(n, 1), np.nan)


def interval(values: np.ndarray) -> np.ndarray:
    """Half width of Student's 95 % interval of the mean over seeds; NaN below three seeds."""
    n = (~np.isnan(values)).sum(axis=0)
    squares = np.where(np.isnan(values), 0.0, values - mean(values)) ** 2
    error = np.sqrt(squares.sum(axis=0) / np.maximum(n - 1, 1) / np.maximum(n, 1))
    enough = n >= MIN_SEEDS
    dof = np.where(enough, n - 1, 1)
    quantile = np.array([student_quantile(0.975, int(each)) for each in dof])
    return np.where(enough, quantile * error, np.nan)


def _moving_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Centred mean over `window` points of each line, over fewer at the ends; NaN is ignored."""
    known = ~np.isnan(values)
    kernel = np.ones(window)
    sums, counts = (
        np.array([np.convolve(line, kernel, mode="same") for line in part.astype(float)])
        for part in (np.where(known, values, 0.0), known)
    )
    return np.where(known, sums / np.maximum(counts, 1), np.nan)


def _blocks(values: np.ndarray, points: int) -> np.ndarray:
    """Means over blocks of neighbours, so that each line has at most that many points."""
    size = math.ceil(values.shape[1] / points)
    if size <= 1:
        return values
    starts = range(0, values.shape[1], size)
    return np.stack([mean(values[:, start : start + size].T) for start in starts], axis=1)
