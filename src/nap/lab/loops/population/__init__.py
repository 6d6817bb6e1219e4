"""One supervised training loop for many seeds at once, and what it measures."""
