"""Transformers that learn sequences: their settings and arms, a trainer for all of them, and its runs."""
