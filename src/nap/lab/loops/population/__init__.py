"""Continual learning of many seeds at once: networks of one arm, stacked, in one step."""
