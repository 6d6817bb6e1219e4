"""Where data lies on this machine, and whether it is what the catalogue says.

A file is hashed once; after that its size and time of change, noted in `verified.json`, stand for the hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nap.lab.datasets.catalog import DATA_SETS, find
from nap.lab.datasets.dataset import DataSet, File
from nap.lab.files import expanded, parse_json

RECORD = "verified.json"


class FetchError(ValueError):
    """A data set could not be put in its place."""


class DataMissing(ValueError):
    """A data set is not on this machine, or not whole; says how to get it."""


def data_home() -> Path:
    """The folder that holds all data sets: $NAP_DATA, or ~/.cache/nap/data."""
    return expanded(os.environ.get("NAP_DATA") or "~/.cache/nap/data")


def place(data: DataSet, folder: Path | str | None = None) -> Path:
    """The folder of one data set; `folder` stands in for `data_home()`."""
    return (data_home() if folder is None else expanded(folder)) / data.name


def is_intact(file: File, where: Path) -> bool:
    """Whether the file in the folder `where` has the catalogue's bytes."""
    path = where / file.name
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if _record(where).get(file.name) == _stamp(file, path):
        return True
    if sha256(path) != file.sha256:
        return False
    note_verified_(file, where)
    return True


def paths(data: DataSet | str, *, folder: Path | str | None = None) -> list[Path]:
    """Where the files of a fetched data set lie, each of them verified; `folder` is as in `place`."""
    data = find(data) if isinstance(data, str) else data
    return verified(data, data.files, place(data, folder))


def verified(data: DataSet, files: Sequence[File], where: Path) -> list[Path]:
    """The paths of these files of a data set that lies in the folder `where`; or `DataMissing`."""
    bad = [where / file.name for file in files if not is_intact(file, where)]
    if bad:
        states = [f"{path.name} is {'damaged' if path.exists() else 'missing'}" for path in bad]
        raise DataMissing(
            f"{data.name} is not complete in {where}: {', '.join(states)}; run: nap data fetch {data.name}"
        )
    return [where / file.name for file in files]


def note_verified_(file: File, where: Path) -> None:
    """Note that the file was just hashed and is right. In a read-only folder it is hashed each time."""
    record = {**_record(where), file.name: _stamp(file, where / file.name)}
    aside = where / f"{RECORD}.{os.getpid()}.part"
    with contextlib.suppress(OSError):
        aside.write_text(json.dumps(record, indent=1), "utf-8")
        aside.replace(where / RECORD)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def writing(path: Path, size: int) -> Iterator[None]:
    """What fails inside is the writing of `path`: a full disk, a folder that may not be written to."""
    try:
        yield
    except OSError as error:
        raise FetchError(
            f"{path} cannot be written: {error.strerror or error}. It needs {size:,} bytes; "
            "make room, or choose another place with the environment variable NAP_DATA"
        ) from error


def describe(folder: Path | str | None = None) -> str:
    """A table of the catalogue: name, what it holds, size, and where each set lies on this machine.

    Quick: it looks at sizes and hashes nothing.
    """
    head = ("name", "holds", "size", "where")
    rows = [head, *((d.name, d.holds(), _megabytes(d), _whereabouts(d, folder)) for d in DATA_SETS.values())]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]])
        for row in rows
    )


def card(name: str, folder: Path | str | None = None) -> str:
    """All that is known of one data set, and where it lies on this machine."""
    data = find(name)
    return f"{data}\n  where    {_whereabouts(data, folder)}"


def _whereabouts(data: DataSet, folder: Path | str | None) -> str:
    if not data.files:
        found = find_spec("sklearn") is not None
        return "in scikit-learn" if found else "not installed: pip install scikit-learn"
    where = place(data, folder)
    there = [f for f in data.files if (p := where / f.name).is_file() and p.stat().st_size == f.size]
    if len(there) == len(data.files):
        return str(where)
    state = f"{len(there)} of {len(data.files)} files" if there else "not fetched"
    return f"{state}: nap data fetch {data.name}"


def _megabytes(data: DataSet) -> str:
    return f"{data.size / 1e6:.0f} MB" if data.files else "bundled"


def _stamp(file: File, path: Path) -> list[Any]:
    """What must stay the same for the hash to count as known."""
    found = path.stat()
    return [file.sha256, found.st_size, found.st_mtime_ns]


def _record(where: Path) -> dict[str, Any]:
    try:
        found = parse_json((where / RECORD).read_bytes())
    except (OSError, ValueError):  # none yet, or torn: everything is hashed again
        return {}
    return found if isinstance(found, dict) else {}
