"""Data sets from a folder that one has: plain and compressed files, archives, and what may be wrong there."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nap.lab.datasets.archives import candidates
from nap.lab.datasets.dataset import Npm, Split, Web
from nap.lab.datasets.fetch import fetch
from nap.lab.datasets.store import FetchError
from small_data import BATCHES, COLOUR_SET, as_file, installed, tar_of, write, zip_of
from small_server import refused_address


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def told() -> list[str]:
    return []


def plain(folder: Path) -> Path:
    return write(folder, BATCHES)


def nested(folder: Path) -> Path:
    write(folder / "a" / "b" / "c", BATCHES)
    return folder


def gzipped(folder: Path) -> Path:
    return write(folder, {f"{name}.gz": gzip.compress(content) for name, content in BATCHES.items()})


def tarred(folder: Path) -> Path:
    return write(folder, {"all.tar.gz": tar_of(BATCHES)})


def packed_by_npm(folder: Path) -> Path:
    return write(folder, {"colours-js-1.0.tgz": tar_of(BATCHES, "package/")})


def packed_with_xz(folder: Path) -> Path:
    return write(folder, {f"{name}.xz": lzma.compress(content) for name, content in BATCHES.items()})


def tarred_with_xz(folder: Path) -> Path:
    return write(folder, {"of-my-own.tar.xz": tar_of(BATCHES, packing="xz")})


def zipped(folder: Path) -> Path:
    return write(folder, {"of-my-own.zip": zip_of(BATCHES)})


def a_wheel(folder: Path) -> Path:
    return write(folder, {"colours-1.0-py3-none-any.whl": zip_of(BATCHES, "colours/data/")})


def gzipped_in_a_zip(folder: Path) -> Path:
    inside = {f"{name}.gz": gzip.compress(content) for name, content in BATCHES.items()}
    return write(folder, {"of-my-own.zip": zip_of(inside)})


def beside_what_is_broken(folder: Path) -> Path:
    for name in ("1.zip", "2.whl", "3.tar.gz", "4.tar.xz", "5.tgz", "one.bin.gz", "two.bin.xz"):
        write(folder, {name: b"broken"})
    return zipped(folder)


def the_archive_itself(folder: Path) -> Path:
    return tarred(folder) / "all.tar.gz"


def one_bad_of_two(folder: Path) -> Path:
    write(folder / "first", {"one.bin": b"x" * len(BATCHES["one.bin"])})
    write(folder / "second", BATCHES)
    return folder


@pytest.mark.parametrize(
    "lay_out",
    [
        plain,
        nested,
        gzipped,
        tarred,
        packed_by_npm,
        packed_with_xz,
        tarred_with_xz,
        zipped,
        a_wheel,
        gzipped_in_a_zip,
        beside_what_is_broken,
        the_archive_itself,
        one_bad_of_two,
    ],
)
def test_a_local_folder_is_enough(lay_out: Callable[[Path], Path], tmp_path: Path, told: list[str]) -> None:
    unreachable = (Web(refused_address(), ("all.tar.gz",)), Npm("colours-js", "1.0"))
    data = replace(COLOUR_SET, sources=unreachable)
    source = lay_out(tmp_path / "mine")
    where = fetch(data, folder=tmp_path / "home", source_folder=source, tell=told.append)
    assert where == tmp_path / "home" / "colours"
    assert installed(where) == BATCHES
    assert len(told) == 1, "no other source was tried"


@pytest.mark.parametrize(("name", "make"), [("all.tar.gz", tar_of), ("all.zip", zip_of)])
def test_archives_write_nowhere_but_into_place(
    name: str, make: Callable[..., bytes], tmp_path: Path, told: list[str]
) -> None:
    mine = write(tmp_path / "mine", {name: make({**BATCHES, "evil": b"!"}, prefix="../../")})
    data = replace(COLOUR_SET, sources=(Web(refused_address(), ("all.tar.gz",)),))
    where = fetch(data, folder=tmp_path / "home", source_folder=mine, tell=told.append)
    found = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {*BATCHES, name}
    assert installed(where) == BATCHES


def test_the_cheapest_is_looked_at_first(tmp_path: Path) -> None:
    contents = dict.fromkeys(("a.zip", "known.tar.gz", "one.bin.gz", "other", "two.bin"), b"")
    write(tmp_path / "below", {"a.zip": b"", "one.bin": b""})
    found = candidates(write(tmp_path, contents), COLOUR_SET.files, ["known.tar.gz"])
    names = [path.relative_to(tmp_path).as_posix() for path in found]
    assert names == ["below/one.bin", "two.bin", "one.bin.gz", "known.tar.gz", "a.zip"]


def test_an_archive_deeper_in_the_folder_is_read_only_if_a_source_has_it(
    tmp_path: Path, told: list[str]
) -> None:
    write(tmp_path / "mine" / "below", {"all.zip": zip_of(BATCHES)})
    data = replace(COLOUR_SET, sources=(Web(refused_address(), ("all.zip",)),))
    where = fetch(data, folder=tmp_path / "home", source_folder=tmp_path / "mine", tell=told.append)
    assert installed(where) == BATCHES
    unknown = replace(COLOUR_SET, sources=(Web(refused_address(), ("another.zip",)),))
    with pytest.raises(FetchError, match=r"mine: has no one\.bin, two\.bin, test\.bin"):
        fetch(unknown, folder=tmp_path / "away", source_folder=tmp_path / "mine", tell=told.append)


@pytest.mark.parametrize("lay_out", ["tar", "zip", "folder"])
def test_files_of_one_name_are_told_apart_by_their_paths(
    lay_out: str, tmp_path: Path, told: list[str]
) -> None:
    """What was tried and found wrong would be told, so silence shows that no other file was looked at."""
    contents = {f"{name}/valid.jsonl": content for name, content in zip("abc", BATCHES.values(), strict=True)}
    if lay_out == "folder":
        for name, content in contents.items():
            write(tmp_path / "mine" / name[0], {"valid.jsonl": content})
    else:
        made = tar_of(contents) if lay_out == "tar" else zip_of(contents)
        write(tmp_path / "mine", {"all.tar.gz" if lay_out == "tar" else "all.zip": made})
    file = replace(as_file("b.jsonl", contents["b/valid.jsonl"]), inside=("b/valid.jsonl",))
    absent = replace(as_file("d.jsonl", b"not there"), inside=("d/valid.jsonl",))
    data = replace(COLOUR_SET, splits={"train": Split(1, (file, absent))})
    with pytest.raises(FetchError):
        fetch(data, folder=tmp_path / "home", source_folder=tmp_path / "mine", tell=told.append)
    assert installed(tmp_path / "home" / "colours")["b.jsonl"] == contents["b/valid.jsonl"]
    assert told[-1].endswith("has no d.jsonl")


def test_a_zip_that_needs_a_password_is_passed_over(tmp_path: Path, told: list[str]) -> None:
    locked = bytearray(zip_of(BATCHES))
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # headers, and where they keep their flags
        at = locked.find(mark)
        while at >= 0:
            locked[at + flags] |= 1  # says: encrypted
            at = locked.find(mark, at + 1)
    mine = write(tmp_path / "mine", {"locked.zip": bytes(locked)})
    with pytest.raises(FetchError, match=r"locked\.zip cannot be read.*password"):
        fetch(COLOUR_SET, folder=tmp_path / "home", source_folder=mine, tell=told.append)
