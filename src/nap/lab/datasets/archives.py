"""Wanted files in a folder, an archive (tar, zip, wheel), a compressed file or a plain file.

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

Progress = Callable[[int, int], None]  # bytes done and total (0 if unknown) of the current file
BLOCK = 1 << 20  # bytes
MOST_MEMBERS = 50_000  # of a tar, which keeps all of them in memory
MOST_LISTED = 64 << 20  # bytes of the list of members in a zip, which is read whole

_COMPRESSIONS: dict[str, Callable[[IO[bytes]], Any]] = {"": nullcontext, ".gz": gzip.open, ".xz": lzma.open}
_UNREADABLE = (
    OSError,
    EOFError,
    RuntimeError,  # of zipfile, for encrypted files and unknown compressions
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
    """A source has nothing usable; the next one may."""


Streams = Generator[tuple[File, Readable], None, None]


def candidates(container: Path, wanted: Collection[File], archives: Collection[str]) -> list[Path]:
    """The container itself, or the paths in a folder that may hold wanted files, plain ones first.

    Archives are taken anywhere below the folder if named in `archives`, others directly in it only.
    """
    if not container.is_dir():
        return [container]
    paths = (Path(parent, name) for parent, _, names in os.walk(container) for name in names)
    below = sorted(path for path in paths if files.is_file(path))  # reading a pipe would block
    compressions = {path: match[1] for path in below if (match := _match(path.as_posix(), wanted))}
    plain = sorted(compressions, key=lambda path: compressions[path] != "")
    known = [path for path in below if path.name in archives]
    others = [path for path in below if is_archive(path.name) and path.parent == container]
    return list(dict.fromkeys(plain + known + others))


def entries(container: Path, wanted: Collection[File]) -> Streams:
    """(file, stream) for each wanted file in an archive, or in a file that may be compressed."""
    if container.name.endswith((".zip", ".whl")):
        yield from _in_zip(container, wanted)
    elif is_archive(container.name):
        yield from _in_tar(container, wanted)
    elif match := _match(container.as_posix(), wanted):
        with reading(container), container.open("rb") as stream:
            yield from _decompressed(*match, stream)


def may_hold(container: str, wanted: Collection[File]) -> bool:
    """Whether a container of that name can hold a wanted file.

    >>> a = [File("a", 0, "")]
    >>> may_hold("x.tar.gz", a), may_hold("a.gz", a), may_hold("b.gz", a)
    (True, True, False)
    """
    return is_archive(container) or _match(container, wanted) is not None


def blocks(stream: Readable, name: str, progress: Progress, total: int, done: int = 0) -> Iterator[bytes]:
    """The stream in blocks; raises `SourceFailed` if it breaks off."""
    while True:
        with reading(name):
            block = stream.read(BLOCK)
        if not block:
            return
        done += len(block)
        yield block
        progress(done, total)


@contextmanager
def reading(name: Path | str) -> Iterator[None]:
    """Raise errors of reading as `SourceFailed`."""
    try:
        yield
    except _UNREADABLE as error:
        raise SourceFailed(f"{name} cannot be read: {error}") from error


def _match(path: str, wanted: Collection[File]) -> tuple[File, str] | None:
    """The wanted file at that path, and the suffix of its compression."""
    for suffix in _COMPRESSIONS:
        for file in wanted:
            if path.endswith(suffix) and file.is_at(path.removesuffix(suffix)):
                return file, suffix
    return None


def _decompressed(file: File, suffix: str, stream: IO[bytes]) -> Streams:
    with _COMPRESSIONS[suffix](stream) as plain:
        yield file, plain


def _in_tar(archive: Path, wanted: Collection[File]) -> Streams:
    with reading(archive), tarfile.open(archive, "r:*") as tar:
        for number, member in enumerate(tar):
            if number >= MOST_MEMBERS:
                raise SourceFailed(f"{archive} has more than {MOST_MEMBERS:,} members")
            match = _match(member.name, wanted) if member.isfile() else None
            if match and (stream := tar.extractfile(member)) is not None:
                with stream:
                    yield from _decompressed(*match, stream)


def _in_zip(archive: Path, wanted: Collection[File]) -> Streams:
    with reading(archive):
        listed = _directory_size(archive)
    if listed > MOST_LISTED:
        raise SourceFailed(f"{archive} lists its members in {listed:,} bytes, more than any known set needs")
    with reading(archive), zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            if match := _match(member.filename, wanted):
                with zipped.open(member) as stream:
                    yield from _decompressed(*match, stream)


def _directory_size(archive: Path) -> int:
    """The size that a zip gives for its list of members; 0 if it is no zip."""
    with archive.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 22 - (1 << 16)))
        end = file.read()
    at = end.rfind(b"PK\x05\x06")
    return int(struct.unpack_from("<I", end, at + 12)[0]) if 0 <= at <= len(end) - 22 else 0
