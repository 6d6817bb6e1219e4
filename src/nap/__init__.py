"""Normalize-and-Project: networks that keep learning, with learning rates that are what they say."""
