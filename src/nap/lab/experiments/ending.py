"""How `nap run` and `nap sweep` end: with what the runs show, or with how to go on."""

from __future__ import annotations

from pathlib import Path

from nap.lab import claims, report, rows
from nap.lab.options import RunOptions


def show(folder: Path, *, with_report: bool) -> None:
    """Print the verdicts on the runs of a folder, and where the figures are."""
    if not any(file.stat().st_size for file in folder.rglob(rows.FILE_NAME)):
        print(f"\nNo results: no run in {folder} has got far enough")
        return
    print()
    try:
        claims.command(folder, False)
    except ValueError as error:  # the runs are done all the same
        print(f"No verdicts: {error}")
    pointer = f"Report: {report.command(folder)}" if with_report else f"Figures: nap report {folder}"
    print(f"\nResults: {folder}\n{pointer}")


def same_command(options: RunOptions) -> str:
    """What goes on with the runs: with --force it would discard them.

    >>> same_command(RunOptions(force=True))
    'the same command without --force'
    """
    return "the same command" + " without --force" * options.force
