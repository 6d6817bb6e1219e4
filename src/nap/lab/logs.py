"""Reading logs of training as rows: of the lab, CSV, JSON, JSON lines, and TensorBoard's event files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nap.lab import rows as lab_rows

Row = dict[str, Any]
Logs = dict[tuple[str, str], list[Row]]  # (what, seed) → rows, oldest first
_WHAT = ("run", "arm", "game", "method", "batch_size", "learning_rate_set")
EVENTS = "events.out.tfevents"
_KNOWN = (lab_rows.FILE_NAME, "metrics.csv", "progress.csv", "trainer_state.json")


def read(path: Path) -> Logs:
    """The rows of a file or folder; of runs of the lab apart by arm and seed."""
    if path.is_dir():
        return _folder(path)
    if path.name == lab_rows.FILE_NAME:
        return _of_lab(lab_rows.read(path))
    return {("", ""): list(_file(path))}


def _folder(path: Path) -> Logs:
    if any(path.rglob(lab_rows.FILE_NAME)):
        return _of_lab(lab_rows.read(path))
    files = [f for name in _KNOWN for f in path.rglob(name)]
    files += [f for f in path.rglob("*") if EVENTS in f.name or f.suffix == ".jsonl"]
    if not files:
        raise ValueError(
            f"{path} holds no log that nap reads: no {', '.join(_KNOWN)}, *.jsonl or TensorBoard events"
        )
    logs: Logs = {}
    for file in sorted(set(files)):
        label = "" if len(files) == 1 else str(file.parent.relative_to(path))
        logs.setdefault((label if label != "." else file.name, ""), []).extend(_file(file))
    return {key: _in_order(found) for key, found in logs.items()}


def _file(path: Path) -> Iterator[Row]:
    if EVENTS in path.name:
        yield from _events(path)
    elif path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield {key: number for key, text in row.items() if (number := _number(text)) is not None}
    else:
        yield from _json(path)


def _number(text: Any) -> float | None:
    """A cell as a number; None where it is empty or a word."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _json(path: Path) -> Iterable[Row]:
    text = path.read_text("utf-8")
    try:
        found = json.loads(text)
    except ValueError:
        found = [_line(path, n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    if isinstance(found, Mapping):
        found = found.get("log_history", [found])  # trainer_state.json
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        raise ValueError(f"{path} is no log: a list of objects, or one object a line")
    return [dict(row) for row in found]


def _line(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"{path} line {number} is no JSON ({error}); nap reads CSV, JSON, JSON lines and event files"
        ) from None


def _events(path: Path) -> list[Row]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(path), size_guidance={"scalars": 0})
    reader.Reload()
    return _in_order(
        {"step": event.step, tag: event.value}
        for tag in reader.Tags()["scalars"]
        for event in reader.Scalars(tag)
    )


def _in_order(found: Iterable[Row]) -> list[Row]:
    """By their steps, where all have one."""
    listed = list(found)
    return sorted(listed, key=lambda row: row["step"]) if all("step" in row for row in listed) else listed


def _of_lab(found: Iterable[Row]) -> Logs:
    logs: Logs = {}
    for row in found:
        if row.get("kind") not in (None, "layer"):
            continue
        label = ", ".join(str(row[key]) for key in _WHAT if row.get(key) not in (None, ""))
        numbers = dict(row)
        if row.get("kind") == "layer":
            rate, step = row.get("effective_rate"), {str(k): row[k] for k in ("frames", "step") if k in row}
            numbers = {**step, f"rate/{row['layer']}": rate} if rate is not None else {}
        logs.setdefault((label, str(row.get("seed", ""))), []).append(numbers)
    return logs
