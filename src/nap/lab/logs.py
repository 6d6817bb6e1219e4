"""Training logs as rows: of the lab, CSV, JSON, JSON lines, and TensorBoard event files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nap.lab import files
from nap.lab import rows as lab_rows

Row = dict[str, Any]
Logs = dict[tuple[str, str], list[Row]]  # (label, seed) → rows, oldest first
_LABELS = ("run", "arm", "game", "method", "batch_size", "learning_rate_set")
EVENTS = "events.out.tfevents"
_KNOWN = (lab_rows.FILE_NAME, "metrics.csv", "progress.csv", "trainer_state.json")


def read(path: Path) -> Logs:
    """The rows of a log file or of a folder of logs; runs of the lab are separated by arm and seed."""
    if path.is_dir():
        return _folder(path)
    if path.name == lab_rows.FILE_NAME:
        return _of_lab(lab_rows.read(path))
    return {("", ""): list(_file(path))}


def _folder(path: Path) -> Logs:
    if any(path.rglob(lab_rows.FILE_NAME)):
        return _of_lab(lab_rows.read(path))
    paths = {f for name in _KNOWN for f in path.rglob(name)}
    paths |= {f for f in path.rglob("*") if EVENTS in f.name or f.suffix == ".jsonl"}
    if not paths:
        raise ValueError(
            f"{path} holds no log that nap reads: no {', '.join(_KNOWN)}, *.jsonl or TensorBoard events"
        )
    logs: Logs = {}
    for file in sorted(paths):
        label = "" if len(paths) == 1 else str(file.parent.relative_to(path))
        logs.setdefault((label if label != "." else file.name, ""), []).extend(_file(file))
    return {key: _sorted(rows) for key, rows in logs.items()}


def _file(path: Path) -> Iterator[Row]:
    if EVENTS in path.name:
        yield from _events(path)
    elif path.suffix == ".csv":
        try:
            for row in csv.DictReader(io.StringIO(_text(path), newline="")):
                yield {key: number for key, cell in row.items() if (number := _number(cell)) is not None}
        except csv.Error as error:
            raise ValueError(f"{path} is no CSV file ({error})") from error
    else:
        yield from _json(path)


def _text(path: Path) -> str:
    try:
        return files.content(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 ({error})") from error


def _number(cell: Any) -> float | None:
    """A cell as a number; None if it is empty or a word."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def _json(path: Path) -> Iterable[Row]:
    text = _text(path)
    try:
        content = files.parse_json(text)
    except ValueError:
        content = [_line(path, n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if isinstance(content, Mapping):
        content = content.get("log_history", [content])  # trainer_state.json
    if not isinstance(content, list) or not all(isinstance(row, Mapping) for row in content):
        raise ValueError(f"{path} is no log: a list of objects, or one object a line")
    return [dict(row) for row in content]


def _line(path: Path, number: int, text: str) -> Any:
    try:
        return files.parse_json(text)
    except ValueError as error:
        raise ValueError(
            f"{path} line {number} is no JSON ({error}); nap reads CSV, JSON, JSON lines and event files"
        ) from None


def _events(path: Path) -> list[Row]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not files.is_file(path):
        raise ValueError(f"{path} is no file; remove it")
    reader = EventAccumulator(str(path), size_guidance={"scalars": 0})
    reader.Reload()
    return _sorted(
        {"step": event.step, tag: event.value}
        for tag in reader.Tags()["scalars"]
        for event in reader.Scalars(tag)
    )


def _sorted(rows: Iterable[Row]) -> list[Row]:
    """Sorted by step, if every row has one that is a number."""
    listed = list(rows)
    numbered = all(isinstance(row.get("step"), int | float) for row in listed)
    return sorted(listed, key=lambda row: row["step"]) if numbered else listed


def _of_lab(rows: Iterable[Row]) -> Logs:
    logs: Logs = {}
    for row in rows:
        if row.get("kind") not in (None, "layer"):
            continue
        label = ", ".join(str(row[key]) for key in _LABELS if row.get(key) not in (None, ""))
        numbers = dict(row)
        if row.get("kind") == "layer":
            rate, step = row.get("effective_rate"), {str(k): row[k] for k in ("frames", "step") if k in row}
            numbers = {**step, f"rate/{row.get('layer')}": rate} if rate is not None else {}
        logs.setdefault((label, str(row.get("seed", ""))), []).append(numbers)
    return logs
