"""Files inside of containers: a folder, a tar archive, a gzipped file, a plain file.

Archives are read as streams and never unpacked to the paths that they name.
"""

from __future__ import annotations

import gzip
import http.client
import os
import tarfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Protocol

from nap.lab.data.dataset import is_tar

Progress = Callable[[int, int], None]  # bytes done and in all (0: not known) of the file under way
BLOCK = 1 << 20  # bytes


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


class SourceFailed(Exception):
    """A source gave nothing usable; the next one may."""


def entries(
    container: Path, wanted: Collection[str], archives: Collection[str]
) -> Generator[tuple[str, Readable], None, None]:
    """(name, open stream) of each wanted file inside; of a folder, all below it, plain files first.

    `archives` are the names of tar archives to look into where the container is a folder.
    """
    if container.is_dir():
        yield from _in_folder(container, wanted, archives)
    elif is_tar(container.name):
        yield from _in_tar(container, wanted)
    elif container.name in wanted:
        with reading(container), container.open("rb") as plain:
            yield container.name, plain
    elif container.name.removesuffix(".gz") in wanted:
        with reading(container), gzip.open(container) as unpacked:
            yield container.name.removesuffix(".gz"), unpacked


def may_hold(container: str, wanted: Collection[str]) -> bool:
    """Whether a container of that name can have any of the wanted files inside.

    >>> may_hold("x.tar.gz", ["a"]), may_hold("a.gz", ["a"]), may_hold("b.gz", ["a"])
    (True, True, False)
    """
    return is_tar(container) or container in wanted or container.removesuffix(".gz") in wanted


def blocks(stream: Readable, what: str, progress: Progress, total: int, done: int = 0) -> Iterator[bytes]:
    """The stream in blocks; a stream that cannot be read on is a `SourceFailed`."""
    while True:
        with reading(what):
            block = stream.read(BLOCK)
        if not block:
            return
        done += len(block)
        yield block
        progress(done, total)


@contextmanager
def reading(what: Path | str) -> Iterator[None]:
    """What fails inside is the reading of a source."""
    try:
        yield
    except (OSError, EOFError, zlib.error, tarfile.TarError, http.client.HTTPException) as error:
        raise SourceFailed(f"{what} cannot be read: {error}") from error


def _in_folder(
    folder: Path, wanted: Collection[str], archives: Collection[str]
) -> Iterator[tuple[str, Readable]]:
    below = sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    packed = {f"{name}.gz" for name in wanted}
    for names in (wanted, packed, archives):
        for path in below:
            if path.name in names:
                yield from entries(path, wanted, ())


def _in_tar(archive: Path, wanted: Collection[str]) -> Iterator[tuple[str, Readable]]:
    with reading(archive), tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = PurePosixPath(member.name).name
            if name in wanted and member.isfile() and (stream := tar.extractfile(member)) is not None:
                with stream:
                    yield name, stream
