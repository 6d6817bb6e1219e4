"""Checks of settings that need no torch."""

from __future__ import annotations


def check_range(owner: object, name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Raises unless low ≤ value ≤ high; NaN is outside every range."""
    if not low <= value <= high:
        bounds = f"at least {low}" if high == float("inf") else f"between {low} and {high}"
        raise ValueError(f"{type(owner).__name__}({name}={value}): {name} must be {bounds}")
