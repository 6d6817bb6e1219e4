"""Files inside of containers: a folder, an archive (tar, zip, wheel), a compressed file, a plain file.

Archives are read as streams and never unpacked to the paths that they name.
"""

from __future__ import annotations

import gzip
import http.client
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, Protocol

from nap.lab import files
from nap.lab.datasets.dataset import File, is_archive

Progress = Callable[[int, int], None]  # bytes done and in all (0: not known) of the file under way
BLOCK = 1 << 20  # bytes
MOST_MEMBERS = 50_000  # of an archive, all of which are kept in memory
MOST_LISTED = 64 << 20  # bytes of the list of members in a zip

_PACKINGS: dict[str, Callable[[IO[bytes]], Any]] = {"": nullcontext, ".gz": gzip.open, ".xz": lzma.open}
_UNREADABLE = (
    OSError,
    EOFError,
    RuntimeError,  # zipfile's, for an encrypted file or a compression that it does not know
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    http.client.HTTPException,
)


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


class SourceFailed(Exception):
    """A source gave nothing usable; the next one may."""


Found = Generator[tuple[File, Readable], None, None]


def candidates(container: Path, wanted: Collection[File], archives: Collection[str]) -> list[Path]:
    """The container itself, or what in a folder may hold wanted files, in the order to look at it.

    First the plain files below the folder, then compressed ones, then archives: those of the names in
    `archives` wherever they lie, others only directly in the folder.
    """
    if not container.is_dir():
        return [container]
    paths = (Path(parent, name) for parent, _, names in os.walk(container) for name in names)
    below = sorted(path for path in paths if files.is_file(path))  # a pipe would be waited at for ever
    packings = {path: match[1] for path in below if (match := _match(path.as_posix(), wanted))}
    plain = sorted(packings, key=lambda path: packings[path] != "")
    known = [path for path in below if path.name in archives]
    others = [path for path in below if is_archive(path.name) and path.parent == container]
    return list(dict.fromkeys(plain + known + others))


def entries(container: Path, wanted: Collection[File]) -> Found:
    """(file, open stream) of each wanted file in an archive, or in a file that may be compressed."""
    if container.name.endswith((".zip", ".whl")):
        yield from _in_zip(container, wanted)
    elif is_archive(container.name):
        yield from _in_tar(container, wanted)
    elif match := _match(container.as_posix(), wanted):
        with reading(container), container.open("rb") as stream:
            yield from _unpacked(*match, stream)


def may_hold(container: str, wanted: Collection[File]) -> bool:
    """Whether a container of that name can have any of the wanted files inside.

    >>> a = [File("a", 0, "")]
    >>> may_hold("x.tar.gz", a), may_hold("a.gz", a), may_hold("b.gz", a)
    (True, True, False)
    """
    return is_archive(container) or _match(container, wanted) is not None


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
    except _UNREADABLE as error:
        raise SourceFailed(f"{what} cannot be read: {error}") from error


def _match(path: str, wanted: Collection[File]) -> tuple[File, str] | None:
    """The wanted file that lies at that path, and the ending of its compression."""
    for packing in _PACKINGS:
        for file in wanted:
            if path.endswith(packing) and file.is_at(path.removesuffix(packing)):
                return file, packing
    return None


def _unpacked(file: File, packing: str, stream: IO[bytes]) -> Found:
    with _PACKINGS[packing](stream) as plain:
        yield file, plain


def _in_tar(archive: Path, wanted: Collection[File]) -> Found:
    with reading(archive), tarfile.open(archive, "r:*") as tar:
        for number, member in enumerate(tar):
            if number >= MOST_MEMBERS:
                raise SourceFailed(f"{archive} has more than {MOST_MEMBERS:,} members")
            match = _match(member.name, wanted) if member.isfile() else None
            if match and (stream := tar.extractfile(member)) is not None:
                with stream:
                    yield from _unpacked(*match, stream)


def _in_zip(archive: Path, wanted: Collection[File]) -> Found:
    with reading(archive):
        listed = _bytes_listed(archive)
    if listed > MOST_LISTED:
        raise SourceFailed(f"{archive} lists its members in {listed:,} bytes, more than any known set needs")
    with reading(archive), zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            if match := _match(member.filename, wanted):
                with zipped.open(member) as stream:
                    yield from _unpacked(*match, stream)


def _bytes_listed(archive: Path) -> int:
    """How long the list of members at the end of a zip says to be, which is read whole; 0 for no zip."""
    with archive.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 22 - (1 << 16)))
        end = file.read()
    at = end.rfind(b"PK\x05\x06")
    return int(struct.unpack_from("<I", end, at + 12)[0]) if 0 <= at <= len(end) - 22 else 0
