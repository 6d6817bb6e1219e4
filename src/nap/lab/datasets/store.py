"""Where data sets are on this machine, and whether their files are intact."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nap.lab.datasets.catalog import DATA_SETS, find
from nap.lab.datasets.dataset import DataSet, File
from nap.lab.files import expanded

SETTINGS = ("data", "text", "tokenizer", "eval_sets")  # settings of experiments that name data sets


class FetchError(ValueError):
    """A data set could not be fetched."""


class DataMissing(ValueError):
    """A data set is missing or incomplete; the message says how to get it."""


def data_home() -> Path:
    """The folder of all data sets: $NAP_DATA, or ~/.cache/nap/data."""
    return expanded(os.environ.get("NAP_DATA") or "~/.cache/nap/data")


def place(data: DataSet, folder: Path | str | None = None) -> Path:
    """The folder of one data set, in `folder` or `data_home()`."""
    return (data_home() if folder is None else expanded(folder)) / data.name


def is_intact(file: File, where: Path) -> bool:
    """Whether the file in the folder `where` has the size and the checksum of the catalogue."""
    path = where / file.name
    return path.is_file() and path.stat().st_size == file.size and sha256(path) == file.sha256


def paths(data: DataSet | str, *, folder: Path | str | None = None) -> list[Path]:
    """The verified files of a fetched data set; `folder` as in `place`."""
    data = find(data) if isinstance(data, str) else data
    return verified(data, data.files, place(data, folder))


def verified(data: DataSet, files: Sequence[File], where: Path) -> list[Path]:
    """The paths of these files of a data set in the folder `where`; raises `DataMissing`."""
    bad = [where / file.name for file in files if not is_intact(file, where)]
    if bad:
        states = [f"{path.name} is {'damaged' if path.exists() else 'missing'}" for path in bad]
        raise DataMissing(
            f"{data.name} is not complete in {where}: {', '.join(states)}; run: nap data fetch {data.name}"
        )
    return [where / file.name for file in files]


def require(configs: Iterable[Any]) -> None:
    """Raise `DataMissing` with all data sets that these configs name and that are not on this machine.

    Only looks if files exist: damage is reported when they are read.
    """
    names = dict.fromkeys(name for config in configs for name in named(config))
    missing = [
        name
        for name in names
        if not any((place(DATA_SETS[name]) / file.name).exists() for file in DATA_SETS[name].files)
    ]
    if missing:
        listed = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        verb = "is" if len(missing) == 1 else "are"
        raise DataMissing(f"{listed} {verb} not in {data_home()}; run: nap data fetch {' '.join(missing)}")


def named(config: Any) -> Iterator[str]:
    """The data sets to fetch that the settings of a run name.

    >>> list(named({"settings": {"data": "digits", "text": ["text8", "mine.txt"], "eval_sets": ["piqa"]}}))
    ['text8', 'piqa']
    """
    values = asdict(config) if is_dataclass(config) and not isinstance(config, type) else config
    for key, value in values.items() if isinstance(values, Mapping) else ():
        if isinstance(value, Mapping):
            yield from named(value)
        elif key in SETTINGS:
            words = [value] if isinstance(value, str) else value
            yield from (word for word in words if word in DATA_SETS and DATA_SETS[word].files)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def writing(path: Path, size: int) -> Iterator[None]:
    """Raise errors of writing `path` as `FetchError` with the space that it needs."""
    try:
        yield
    except OSError as error:
        raise FetchError(
            f"{path} cannot be written: {error.strerror or error}. It needs {size:,} bytes; "
            "make room, or choose another place with the environment variable NAP_DATA"
        ) from error


def describe(folder: Path | str | None = None) -> str:
    """The table of `nap data list`; looks at sizes and hashes nothing."""
    head = ("name", "holds", "size", "where")
    rows = [head, *((d.name, d.holds(), _megabytes(d), _where(d, folder)) for d in DATA_SETS.values())]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]])
        for row in rows
    )


def card(name: str, folder: Path | str | None = None) -> str:
    """The text of `nap data show` for one data set."""
    data = find(name)
    return f"{data}\n  where    {_where(data, folder)}"


def _where(data: DataSet, folder: Path | str | None) -> str:
    if not data.files:
        installed = find_spec("sklearn") is not None
        return "in scikit-learn" if installed else "not installed: pip install scikit-learn"
    where = place(data, folder)
    there = [f for f in data.files if (p := where / f.name).is_file() and p.stat().st_size == f.size]
    if len(there) == len(data.files):
        return str(where)
    state = f"{len(there)} of {len(data.files)} files" if there else "not fetched"
    return f"{state}: nap data fetch {data.name}"


def _megabytes(data: DataSet) -> str:
    return f"{data.size / 1e6:.0f} MB" if data.files else "bundled"
