"""Folders that are made once: by one process, whole, and again where they are damaged."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nap.lab.datasets.atomic import atomic_dir
from nap.lab.datasets.store import DataMissing


def writer(made: list[Path]) -> Callable[[Path], None]:
    """A `make` that writes one file and notes that it was called."""

    def make(empty: Path) -> None:
        assert list(empty.iterdir()) == []
        (empty / "whole").write_text("yes")
        made.append(empty)

    return make


def test_one_makes_it_and_the_others_wait(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Threads stand in for processes: the lock belongs to an opened file, and each opens its own."""
    folder, made, begun, go_on = tmp_path / "set", list[Path](), threading.Event(), threading.Event()
    waiting = f"another process is making {folder}; waiting for it"

    def slow(empty: Path) -> None:
        begun.set()
        go_on.wait()
        writer(made)(empty)

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(atomic_dir, folder, slow)
        begun.wait()
        others = [pool.submit(atomic_dir, folder, slow) for _ in range(2)]
        said = ""
        while said.count(waiting) < 2 and not any(each.done() for each in others):
            time.sleep(0.01)
            said += capfd.readouterr().err
        go_on.set()
        assert [each.result() for each in (first, *others)] == [folder] * 3
    assert said == f"{waiting}\n" * 2
    assert len(made) == 1
    assert (folder / "whole").read_text() == "yes"


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    for name in ("set.0123.part", "settee.0123.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_bytes(b"x" * 1000)
    atomic_dir(tmp_path / "set", writer([]))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set.lock", "settee.0123.part"]


def test_one_that_fails_leaves_nothing_and_lets_the_next_try(tmp_path: Path) -> None:
    def fails(empty: Path) -> None:
        (empty / "half").write_text("no")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        atomic_dir(tmp_path / "set", fails)
    assert [path.name for path in tmp_path.iterdir()] == ["set.lock"]
    made: list[Path] = []
    assert atomic_dir(tmp_path / "set", writer(made)) == atomic_dir(tmp_path / "set", writer(made))
    assert len(made) == 1


def test_a_damaged_one_is_made_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[Path] = []

    def damage(folder: Path) -> str:
        return "" if (folder / "whole").exists() else "it is not whole"

    folder = atomic_dir(tmp_path / "set", writer(made), damage=damage)
    assert atomic_dir(folder, writer(made), damage=damage) == folder
    assert (len(made), capsys.readouterr().err) == (1, "")
    (folder / "whole").rename(folder / "left over")
    atomic_dir(folder, writer(made), damage=damage)
    assert len(made) == 2
    assert [path.name for path in folder.iterdir()] == ["whole"]
    assert f"{folder} is damaged (it is not whole) and is made anew" in capsys.readouterr().err


def test_others_may_read_it_as_far_as_the_umask_lets_them(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    assert atomic_dir(tmp_path / "set", writer([])).stat().st_mode == plain.stat().st_mode


def test_where_nothing_can_be_locked_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(DataMissing, match=r"set.lock cannot be locked \(No locks available\).*NAP_DATA"):
        atomic_dir(tmp_path / "set", writer([]))
    atomic_dir(tmp_path, writer([]))  # what is there needs no lock
