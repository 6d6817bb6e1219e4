"""Held-out architectures, and an oracle that judges by intervention what `nap.normalize_` does to them."""
