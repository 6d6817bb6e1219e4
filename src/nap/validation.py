"""Checks of arguments and settings that need no torch."""

from __future__ import annotations


def check_range(owner: object, name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Raise unless low ≤ value ≤ high; NaN is outside every range.

    >>> check_range(object(), "decay", 2.0, 0, 1)
    Traceback (most recent call last):
    ValueError: object(decay=2.0): decay must be between 0 and 1
    """
    if not low <= value <= high:
        bounds = f"at least {low}" if high == float("inf") else f"between {low} and {high}"
        raise ValueError(f"{type(owner).__name__}({name}={value}): {name} must be {bounds}")
