"""Normalize-and-Project: networks that keep learning, with learning rates that are what they say."""

from nap.normalize import normalize_, plan
from nap.weights import weight_groups

__all__ = ["normalize_", "plan", "weight_groups"]
