"""From folders of runs to verdicts: what `nap claims DIR` does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps
from pathlib import Path

from nap.lab import rows as row_files
from nap.lab.claims.claim import Verdict
from nap.lab.claims.samples import DAMAGED, UNFINISHED, run_status
from nap.lab.claims.verdicts import Result, evaluate, summary, table, to_json
from nap.lab.rows import Rows
from nap.lab.stored import MANIFEST, UNVERIFIED, StoredRun, stored_run

ALL_HOLD, NOT_ALL_HOLD = 0, 1
# raised by rows that `nap run` did not write: a column is missing, or holds another type
ROW_ERRORS = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class StoredRows:
    """The rows below a folder, and what is known of their integrity."""

    by_folder: Mapping[str, Rows]  # by the folder that holds the runs, so that scales are not mixed
    damage: tuple[str, ...]  # one line for each damaged run
    unverified: int  # runs without a checksum of their rows
    runs: int


def read(directory: Path | str) -> Mapping[str, Rows]:
    """The rows below `directory`, by the folder that holds their runs, so that scales are not mixed.

    Rows of unfinished and damaged runs are marked with the status of their run: they decide no claim.
    """
    return read_with_damage(Path(directory)).by_folder


def read_with_damage(directory: Path) -> StoredRows:
    """The rows below a folder, each run checked against its manifest."""
    files = [path for name in (row_files.FILE_NAME, MANIFEST) for path in directory.rglob(name)]
    if not files:
        raise ValueError(
            f"no {row_files.FILE_NAME} in {directory} or below it; `nap run` writes one for each run"
        )
    rows: dict[str, list[row_files.Row]] = {}
    damage, unverified, run_folders = [], 0, sorted({file.parent for file in files})
    for folder in run_folders:
        run = stored_run(folder)
        status = status_of(run)
        extra = {UNFINISHED: status} if status else {}
        rows.setdefault(str(folder.parent), []).extend({"run": folder.name} | row | extra for row in run.rows)
        damage += [f"{folder} is damaged: {problem}" for problem in run.damage[:1]]
        unverified += len(run.rows) > 0 and not run.verified and not run.damage
    by_folder = {folder: Rows(found) for folder, found in rows.items()}
    return StoredRows(by_folder, tuple(damage), unverified, len(run_folders))


def status_of(run: StoredRun) -> str:
    """Why a run decides no claim; "" for a finished one, and for rows that were copied without a manifest."""
    if run.damage:
        return DAMAGED
    return run_status(run.manifest) if run.manifest else ""


def command(directory: Path | str, json: bool = False) -> int:
    """Print the verdicts on all runs below `directory`; 0 if every claim holds and nothing is damaged.

    Warnings about damaged and unverified runs go to standard error.
    """
    stored = read_with_damage(Path(directory))
    damage = [f"{line}; no claim is decided on its rows" for line in stored.damage]
    results: dict[str, list[Result]] = {}
    for folder, rows in stored.by_folder.items():
        try:
            results[folder] = evaluate(rows)
        except ROW_ERRORS as error:
            damage.append(f"{folder}: no verdicts: {explain(error)}")
    for line in damage:
        print(f"warning: {line}", file=sys.stderr)
    if stored.unverified:
        print(f"note: {stored.unverified} of {stored.runs} runs are {UNVERIFIED}", file=sys.stderr)
    everything = [result for group in results.values() for result in group]
    if not everything:
        raise ValueError(f"the rows below {directory} are of no experiment that the paper makes claims about")
    if json:
        objects = [
            {"folder": folder} | entry for folder, group in results.items() for entry in to_json(group)
        ]
        print(dumps(objects, indent=2, ensure_ascii=False))
    else:
        shown = {folder: group for folder, group in results.items() if group}  # tuning runs decide nothing
        for folder, group in shown.items():
            print(f"{folder}\n\n{table(group)}\n")
        if len(shown) > 1:
            print(f"In total {summary(everything)}")
    all_hold = all(evidence.verdict is Verdict.HOLDS for _, evidence in everything)
    return ALL_HOLD if all_hold and not damage else NOT_ALL_HOLD


def explain(error: Exception) -> str:
    """What is wrong with rows that cause this error.

    >>> explain(KeyError("step")), explain(ValueError("two rows have a 'loss'"))
    ("the rows have no 'step': was the file edited?", "two rows have a 'loss'")
    """
    if type(error) is ValueError:
        return str(error)
    if isinstance(error, KeyError):
        return f"the rows have no {error.args[0]!r}: was the file edited?"
    return f"`nap run` does not write such rows ({type(error).__name__}: {error}): was the file edited?"
