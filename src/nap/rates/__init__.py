"""Effective learning rates: measured, made explicit, and compared between twins."""
