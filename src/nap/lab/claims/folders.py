"""From folders of runs to verdicts: what `nap claims DIR` does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps
from pathlib import Path

from nap.lab import rows as row_files
from nap.lab.claims.claim import Verdict
from nap.lab.claims.samples import DAMAGED, UNFINISHED, standing
from nap.lab.claims.verdicts import Result, judge, summary, table, to_json
from nap.lab.rows import Rows
from nap.lab.stored import MANIFEST, UNVERIFIED, StoredRun, stored_run

ALL_HOLD, NOT_ALL_HOLD = 0, 1
# what rows cause that `nap run` did not write so: a column that is missing, or of another kind
ODD_ROWS = (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError)


@dataclass(frozen=True)
class Found:
    """The rows below a folder, and how far they can be trusted."""

    rows: Mapping[str, Rows]  # by the folder of their runs, so that scales are not mixed
    damage: tuple[str, ...]  # a line for each run that is not as it was written
    unverified: int  # runs whose rows have no checksum: they are older than those
    runs: int


def read(directory: Path | str) -> Mapping[str, Rows]:
    """The rows below `directory` by the folder of their runs, so that scales are not mixed.

    Rows of a run whose manifest says that it is not finished are marked with how it stands, and so are those
    of a damaged one: no claim is decided on them.
    """
    return found(Path(directory)).rows


def found(directory: Path) -> Found:
    """The rows below a folder, each run's checked against its manifest."""
    files = [path for name in (row_files.FILE_NAME, MANIFEST) for path in directory.rglob(name)]
    if not files:
        raise ValueError(
            f"no {row_files.FILE_NAME} in {directory} or below it; `nap run` writes one for each run"
        )
    rows: dict[str, list[row_files.Row]] = {}
    damage, unverified, homes = [], 0, sorted({file.parent for file in files})
    for home in homes:
        run = stored_run(home)
        words = mark(run)
        marked = {UNFINISHED: words} if words else {}
        rows.setdefault(str(home.parent), []).extend({"run": home.name} | row | marked for row in run.rows)
        damage += [f"{home} is damaged: {problem}" for problem in run.damage[:1]]
        unverified += len(run.rows) > 0 and not run.verified and not run.damage
    return Found({folder: Rows(of) for folder, of in rows.items()}, tuple(damage), unverified, len(homes))


def mark(run: StoredRun) -> str:
    """How a run stands that decides nothing; "" for a finished one, and for rows that were copied alone."""
    if run.damage:
        return DAMAGED
    return standing(run.manifest) if run.manifest else ""


def command(directory: Path | str, json: bool = False) -> int:
    """Prints the verdicts on all runs below `directory`; 0 if every claim holds and nothing is damaged.

    What cannot be trusted is said on standard error.
    """
    read = found(Path(directory))
    damage = [f"{line}; no claim is decided on its rows" for line in read.damage]
    results: dict[str, list[Result]] = {}
    for folder, rows in read.rows.items():
        try:
            results[folder] = judge(rows)
        except ODD_ROWS as error:
            damage.append(f"{folder}: no verdicts: {in_words(error)}")
    for line in damage:
        print(f"warning: {line}", file=sys.stderr)
    if read.unverified:
        print(f"note: {read.unverified} of {read.runs} runs are {UNVERIFIED}", file=sys.stderr)
    together = [result for of in results.values() for result in of]
    if not together:
        raise ValueError(f"the rows below {directory} are of no experiment that the paper makes claims about")
    if json:
        objects = [{"folder": folder} | entry for folder, of in results.items() for entry in to_json(of)]
        print(dumps(objects, indent=2, ensure_ascii=False))
    else:
        shown = {folder: of for folder, of in results.items() if of}  # runs of a tuning decide nothing
        for folder, of in shown.items():
            print(f"{folder}\n\n{table(of)}\n")
        if len(shown) > 1:
            print(f"In all {summary(together)}")
    all_hold = all(evidence.verdict is Verdict.HOLDS for _, evidence in together)
    return ALL_HOLD if all_hold and not damage else NOT_ALL_HOLD


def in_words(error: Exception) -> str:
    """What rows are like that cause such an error.

    >>> in_words(KeyError("step")), in_words(ValueError("two rows have a 'loss'"))
    ("the rows have no 'step': was the file edited?", "two rows have a 'loss'")
    """
    if type(error) is ValueError:
        return str(error)
    if isinstance(error, KeyError):
        return f"the rows have no {error.args[0]!r}: was the file edited?"
    return (
        f"the rows are not such as `nap run` writes ({type(error).__name__}: {error}): was the file edited?"
    )
