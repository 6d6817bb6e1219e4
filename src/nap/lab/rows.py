"""Rows of results as JSON lines: `pandas.read_json(path, lines=True)` reads them, too. Needs no torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from nap.lab import aliases
from nap.lab.files import check_no_link, content, is_file, opened, parse_json

FILE_NAME = "rows.jsonl"
Row = dict[str, Any]


class RowFile:
    """An append-only file of rows; an incomplete last line, of a crash, is cut off when it is opened.

    >>> import tempfile
    >>> file = RowFile(Path(tempfile.mkdtemp()) / "rows.jsonl")
    >>> file.append([{"arm": "NaP", "task": 1, "loss": 0.5}, {"arm": "NaP", "task": 2, "loss": math.nan}])
    >>> read(file.path).values("loss")
    [0.5, None]
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        check_no_link(self.path)
        self.path.touch()
        self._written = hashlib.sha256()
        self.truncate_to(content(self.path).rfind(b"\n") + 1)

    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def sha256(self) -> str:
        """SHA-256 of what this process read and appended, whatever is on disk by now."""
        return self._written.hexdigest()

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows and return once they are on disk; on a full disk, none of them."""
        payload = "".join(line(row) + "\n" for row in rows).encode()
        if not payload:
            return
        before = self.size()
        try:
            with opened(self.path, "ab", buffering=len(payload) + 1) as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._cut(before)
            raise OSError(
                error.errno,
                f"{error.strerror}: {self.path} needs {len(payload):,} bytes more; free some space, "
                f"then run again to resume",
            ) from error
        self._written.update(payload)

    def truncate_to(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        present = self.size()
        if present < size:
            raise ValueError(
                f"{self.path} holds {present:,} bytes but should hold {size:,}: rows were deleted from it; "
                f"put the file back, or delete the folder to start this run over"
            )
        self._cut(size)
        self._written = hashlib.sha256(content(self.path))

    def _cut(self, size: int) -> None:
        if self.size() > size:
            with opened(self.path, "r+b") as file:
                file.truncate(size)
                os.fsync(file.fileno())


class Rows(Sequence[Row]):
    """An immutable sequence of rows.

    >>> rows = Rows([{"arm": a, "seed": s, "loss": s + len(a)} for a in ("NaP", "none") for s in (1, 0)])
    >>> rows.unique("arm"), rows.where(arm="none", seed=0).values("loss")
    (['NaP', 'none'], [4])
    >>> rows.matrix("loss", by=("arm", "seed"))
    (array([[3., 4.],
           [4., 5.]]), ['NaP', 'none'], [0, 1])
    """

    def __init__(self, rows: Iterable[Row] = ()):
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> Row | Rows:
        return Rows(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __add__(self, other: Rows) -> Rows:
        return Rows((*self._rows, *other._rows))

    def __repr__(self) -> str:
        return f"Rows({len(self)}: {', '.join(dict.fromkeys(key for row in self for key in row))})"

    def where(self, **equal: Any) -> Rows:
        """The rows with these values; a missing key counts as None."""
        return Rows(row for row in self if all(row.get(key) == value for key, value in equal.items()))

    def values(self, key: str) -> list[Any]:
        """The value of each row, None if it is missing."""
        return [row.get(key) for row in self]

    def unique(self, key: str) -> list[Any]:
        """The distinct values, in order of appearance."""
        return list(dict.fromkeys(row[key] for row in self if row.get(key) is not None))

    def matrix(
        self, metric: str, by: tuple[str, str] = ("seed", "task")
    ) -> tuple[np.ndarray, list[Any], list[Any]]:
        """`metric` as an array, NaN where it is missing, and the sorted values of its two axes.

        Task 0, the network before its first update, is left out if it does not have the metric.
        """
        selected = Rows(row for row in self if metric in row or row.get(by[1]) != 0)
        lines, columns = (sorted(selected.unique(key)) for key in by)
        row_of, column_of = ({value: i for i, value in enumerate(axis)} for axis in (lines, columns))
        array = np.full((len(lines), len(columns)), np.nan)
        taken: set[tuple[int, int]] = set()
        for row in selected:
            if metric not in row or any(row.get(key) is None for key in by):
                continue
            cell = row_of[row[by[0]]], column_of[row[by[1]]]
            if cell in taken:
                raise ValueError(
                    f"two rows have a {metric!r} for {by[0]} {row[by[0]]!r} and {by[1]} {row[by[1]]!r}; "
                    f"select one arm first, for example with .where(arm=...)"
                )
            taken.add(cell)
            array[cell] = np.nan if row[metric] is None else row[metric]
        return array, lines, columns


def read(path: Path | str) -> Rows:
    """The rows of a file, or of every rows.jsonl in a folder and below it, in the order of their paths."""
    path = Path(path)
    files = sorted(path.rglob(FILE_NAME)) if path.is_dir() else [path]
    if not files or not is_file(files[0]):
        raise ValueError(f"no {FILE_NAME} at {path} or below it; `nap run` writes one in each run's folder")
    return Rows(aliases.row(row) for file in files for row in stored(file))


def line(row: Mapping[str, Any]) -> str:
    """A row as one line of JSON; NaN and infinity become null."""
    for key, value in row.items():
        if not isinstance(value, str | int | float | None):
            raise ValueError(
                f"the row's {key!r} is a {type(value).__name__}, which is no plain number, text or null; "
                f"convert it first, for example with .item()"
            )
    return json.dumps({key: _finite(value) for key, value in row.items()}, allow_nan=False)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The complete lines of a file of rows, numbered from 1; a run may have been killed in the last one."""
    yield from enumerate(content.split(b"\n")[:-1], start=1)


def parsed(text: bytes) -> Row:
    """Parse a line, keeping stored names; raises ValueError if it is no row."""
    try:
        row = parse_json(text)
    except ValueError as error:
        raise ValueError(f"is no JSON ({error}); was the file edited?") from None
    if not isinstance(row, dict):
        raise ValueError(f"is no JSON object but {text[:40]!r}")
    for key, value in row.items():
        if not isinstance(value, str | int | float | None):
            raise ValueError(f"has a {type(value).__name__} as {key!r}, where a row has a number or a text")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"has a number of {len(str(value))} digits as {key!r}")
    return row


def stored(path: Path) -> Iterator[Row]:
    """The rows of a file under their stored names."""
    for number, text in lines(content(path)):
        try:
            yield parsed(text)
        except ValueError as error:
            raise ValueError(f"{path} line {number} {error}") from None
