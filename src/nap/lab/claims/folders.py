"""From folders of runs to verdicts: what `nap claims DIR` does."""

from __future__ import annotations

from json import dumps, loads
from pathlib import Path

from nap.lab import rows as row_files
from nap.lab.claims.claim import Verdict
from nap.lab.claims.printed import summary, table, to_json
from nap.lab.claims.samples import RESUMABLE, UNFINISHED, standing
from nap.lab.claims.verdicts import judge
from nap.lab.rows import Rows

ALL_HOLD, NOT_ALL_HOLD = 0, 1


def read(directory: Path | str) -> dict[str, Rows]:
    """The rows below `directory` by the folder of their runs, so that scales are not mixed.

    Rows of a run whose manifest says that it is not finished are marked with how it stands: no claim is
    decided on them.
    """
    files = sorted(Path(directory).rglob(row_files.FILE_NAME))
    if not files:
        raise ValueError(
            f"no {row_files.FILE_NAME} in {directory} or below it; `nap run` writes one for each run"
        )
    found: dict[str, Rows] = {}
    for file in files:
        words = _standing(file.parent)
        mark = {UNFINISHED: words} if words else {}
        rows = Rows({"run": file.parent.name} | row | mark for row in row_files.read(file))
        folder = str(file.parent.parent)
        found[folder] = found.get(folder, Rows()) + rows
    return found


def command(directory: Path | str, json: bool = False) -> int:
    """Prints the verdicts on all runs below `directory`; 0 if every claim holds, 1 otherwise."""
    results = {folder: judge(rows) for folder, rows in read(directory).items()}
    together = [result for of in results.values() for result in of]
    if not together:
        raise ValueError(f"the rows below {directory} are of no experiment that the paper makes claims about")
    if json:
        objects = [{"folder": folder} | entry for folder, of in results.items() for entry in to_json(of)]
        print(dumps(objects, indent=2, ensure_ascii=False))
    else:
        for folder, of in results.items():
            print(f"{folder}\n\n{table(of)}\n")
        if len(results) > 1:
            print(f"In all {summary(together)}")
    return ALL_HOLD if all(e.verdict is Verdict.HOLDS for _, e in together) else NOT_ALL_HOLD


def _standing(folder: Path) -> str:
    """As `standing` has it; rows that were copied without a manifest count as finished.

    A manifest that cannot be read vouches for nothing.
    """
    manifest = folder / "manifest.json"
    if not manifest.exists():
        return ""
    try:
        return standing(loads(manifest.read_text("utf-8")))
    except ValueError:
        return RESUMABLE
