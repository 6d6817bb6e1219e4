"""Rows → figures → one HTML page that needs nothing else: no torch to make it, no network to read it."""

from __future__ import annotations

import os
from pathlib import Path

FILE_NAME = "report.html"


def command(directory: Path | str, out: Path | str | None = None) -> Path:
    """Write the report of all runs at or below `directory`; the path of the page.

    It goes to the file `out`, or to report.html in a folder: `out`, else the directory itself. Raises
    ValueError where there is no run.
    """
    # Matplotlib takes most of a second to import; `nap --help` should not wait for it.
    from nap.lab.report.facts import find_groups
    from nap.lab.report.page import page
    from nap.lab.report.sensitivity import find

    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"{directory} is no folder; name one that `nap run` wrote to, for example results")
    target = directory if out is None else Path(out)
    target = target / FILE_NAME if target.is_dir() else target
    tunings = find(directory.resolve())
    text = page(find_groups(directory.resolve(), without_tuning=bool(tunings)), tunings)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        aside.write_text(text, "utf-8")
        aside.replace(target)  # whoever has the old page open never sees half of a new one
    finally:
        aside.unlink(missing_ok=True)  # there only where the disk was full
    return target
