"""One self-contained HTML page of figures and verdicts, made from stored rows without torch."""

from __future__ import annotations

import os
from pathlib import Path

FILE_NAME = "report.html"
TUNED = "tuned.json"  # what `nap tune` writes


def command(directory: Path | str, out: Path | str | None = None) -> Path:
    """Write the report of all runs at or below `directory` and return the path of the page.

    The page is the file `out`, or report.html in the folder `out`, by default in the directory itself. Raises
    ValueError if there is no run.
    """
    # Matplotlib takes most of a second to import; `nap --help` should not wait for it.
    from nap.lab.report.facts import find_groups
    from nap.lab.report.page import page

    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"{directory} is no folder; name one that `nap run` wrote to, for example results")
    target = directory if out is None else Path(out)
    target = target / FILE_NAME if target.is_dir() else target
    if target.exists() and not target.is_file():
        raise ValueError(f"{target} is no file that a report can replace; name another one with --out")
    tunings = []
    if any(directory.rglob(TUNED)):
        from nap.lab.report.sensitivity import sections

        tunings = sections(directory.resolve())
    text = page(find_groups(directory.resolve(), without_tuning=bool(tunings)), tunings)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(target)  # atomic: readers never see half a page
    finally:
        temporary.unlink(missing_ok=True)  # left over if the disk was full
    return target
