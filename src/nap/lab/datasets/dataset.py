"""The description of a data set: files with checksums, content, licence, citation and sources.

Checksums are of the unpacked files, whatever the archives of a source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Web:
    """Files under one address: plain, compressed or in archives."""

    base: str
    containers: tuple[str, ...]

    def __str__(self) -> str:
        return self.base

    def by_hand(self) -> str:
        return "download " + "\n           ".join(self.base + name for name in self.containers)


@dataclass(frozen=True)
class Npm:
    """A package of the npm registry in the user's configuration."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"npm package {self.package} {self.version}"

    def by_hand(self) -> str:
        return f"run: npm pack {self.package}@{self.version}"


@dataclass(frozen=True)
class Debian:
    """A package of the Debian archive in the user's configuration."""

    package: str

    def __str__(self) -> str:
        return f"Debian package {self.package}"

    def by_hand(self) -> str:
        return f"run: apt-get download {self.package} && dpkg-deb -x {self.package}_*.deb ."


@dataclass(frozen=True)
class PyPI:
    """The wheel of a package of the index in the user's configuration; it is not installed."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"PyPI package {self.package} {self.version}"

    def by_hand(self) -> str:
        return f"run: pip {' '.join(self.arguments())}"

    def arguments(self) -> tuple[str, ...]:
        """The arguments for pip."""
        return "download", "--no-deps", "--only-binary=:all:", f"{self.package}=={self.version}"


@dataclass(frozen=True)
class File:
    """One unpacked file; `inside` are other paths, or ends of paths, that it has in sources."""

    name: str
    size: int  # bytes
    sha256: str
    about: str = ""
    inside: tuple[str, ...] = ()

    def is_at(self, path: str) -> bool:
        """Whether the file at that path may be this one.

        >>> file = File("piqa.jsonl", 0, "", inside=("piqa/valid.jsonl",))
        >>> file.is_at("all/piqa/valid.jsonl"), file.is_at("all/siqa/valid.jsonl"), file.is_at("piqa.jsonl")
        (True, False, True)
        """
        return f"/{path}".endswith(tuple(f"/{known}" for known in (self.name, *self.inside)))


@dataclass(frozen=True, kw_only=True)
class DataSet(ABC):
    """One data set; `str()` describes it. Sources are tried in their order."""

    name: str
    about: str
    licence: str
    cite: str
    sources: tuple[Web | Npm | Debian | PyPI, ...] = ()

    @property
    @abstractmethod
    def files(self) -> tuple[File, ...]:
        """All files; none if the set comes with an installed package."""

    @abstractmethod
    def holds(self) -> str:
        """Its content in words."""

    @property
    def size(self) -> int:
        """Bytes of all unpacked files."""
        return sum(file.size for file in self.files)

    @property
    def archives(self) -> tuple[str, ...]:
        """Names of the archives that hold the files."""
        web = [name for s in self.sources if isinstance(s, Web) for name in s.containers if is_archive(name)]
        return *web, *(f"{s.package}-{s.version}.tgz" for s in self.sources if isinstance(s, Npm))

    def by_hand(self) -> str:
        """How to get it without a download by `nap data fetch`."""
        ways = "\n".join(f"  - {source.by_hand()}" for source in self.sources)
        return f"{ways}\n  then: nap data fetch {self.name} --from FOLDER   (where those files are)"

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.about}",
            f"  holds    {self.holds()}",
            f"  licence  {self.licence}",
            f"  cite     {self.cite}",
            *(f"  source   {source}" for source in self.sources),
            *(f"  file     {file.name}  {file.size:,} bytes  sha256 {file.sha256}" for file in self.files),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Split:
    """A split of an image set; its files are (images, labels) for idx, batches for CIFAR."""

    images: int
    files: tuple[File, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImageSet(DataSet):
    """Labelled images of one shape."""

    shape: tuple[int, int, int]  # channels, height, width
    classes: int
    layout: Literal["idx", "cifar", "scikit-learn"]
    splits: Mapping[str, Split]

    @property
    def files(self) -> tuple[File, ...]:
        return tuple(file for split in self.splits.values() for file in split.files)

    def holds(self) -> str:
        """
        >>> from nap.lab.datasets.catalog import find
        >>> find("mnist").holds()
        '60,000 train + 10,000 test of 1×28×28, 10 classes'
        """
        counts = " + ".join(f"{split.images:,} {name}" for name, split in self.splits.items())
        return f"{counts} of {'×'.join(map(str, self.shape))}, {self.classes} classes"


Role = Literal["text", "questions", "tokenizer"]


@dataclass(frozen=True, kw_only=True)
class TextSet(DataSet):
    """Text, evaluation questions or a tokenizer; `File.about` describes each file."""

    role: Role
    texts: tuple[File, ...]

    @property
    def files(self) -> tuple[File, ...]:
        return self.texts

    def holds(self) -> str:
        """
        >>> from nap.lab.datasets.catalog import find
        >>> find("wikitext-103").holds()
        '60 articles for validation + 60 for test'
        """
        return " + ".join(file.about for file in self.texts)


def is_archive(name: str) -> bool:
    """Whether a file of that name is an archive."""
    return name.endswith((".tar.gz", ".tgz", ".tar.xz", ".zip", ".whl"))
