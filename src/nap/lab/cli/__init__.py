"""The command `nap`: its commands, options and help."""

from nap.lab.cli.main import main

__all__ = ["main"]
