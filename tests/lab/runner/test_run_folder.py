"""The folder of a run: its settings, its lock and its manifest."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from nap.lab import rows
from nap.lab.runner import FolderInUse, RunFolder
from nap.lab.runner.folder import RUN_FILES
from nap.lab.runner.manifest import Source, command, source, source_of
from sessions import hold, open_as_nobody, start
from small_work import CONFIG, Training, files, manifest, run

# settings


pytestmark = pytest.mark.multiprocess


@dataclass(frozen=True)
class Config:
    seeds: int = 3
    lr: float = 1e-3
    widths: tuple[int, ...] = (32, 64)


ROW = '{"loss": 1}\n'


def opened(path: Path, config: Any = None, **options: Any) -> RunFolder:
    return RunFolder.open(
        path, experiment="fig1", scale="demo", run="nap", config=config or Config(), **options
    )


def test_a_folder_is_taken_up_with_the_same_settings(tmp_path: Path) -> None:
    with opened(tmp_path / "new/run") as first:
        assert json.loads((first.path / "config.json").read_text()) == {
            "experiment": "fig1",
            "scale": "demo",
            "run": "nap",
            "config": {"seeds": 3, "lr": 0.001, "widths": [32, 64]},
        }
    with opened(tmp_path / "new/run") as again, opened(tmp_path / "other", Config(lr=1.0)) as other:
        assert again.config_hash == first.config_hash != other.config_hash
        assert len(again.config_hash) == 8


@pytest.mark.parametrize("left", ["checkpoint.pt", "checkpoint.previous.pt", "rows.jsonl"])
def test_settings_that_led_to_nothing_are_in_nobody_s_way(tmp_path: Path, left: str) -> None:
    opened(tmp_path).close()
    (tmp_path / left).touch()  # as a run leaves its rows that ends before the first of them
    with opened(tmp_path, Config(lr=0.5)) as folder:
        assert folder.settings["config"]["lr"] == 0.5
    assert json.loads((tmp_path / "config.json").read_bytes())["config"]["lr"] == 0.5
    (tmp_path / left).write_text(ROW)
    with pytest.raises(ValueError, match="holds a run with other settings"):
        opened(tmp_path)


def test_other_settings_are_refused_key_by_key(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "rows.jsonl").write_text(ROW)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ValueError, match="holds a run with other settings") as caught:
        opened(tmp_path, {"seeds": 5, "widths": [32, 64], "decay": 0.1})
    lines = str(caught.value).splitlines()
    assert lines[1:-1] == [
        "  config.seeds: 3 there, 5 now",
        "  config.lr: 0.001 there, not set now",
        "  config.decay: not set there, 0.1 now",
    ]
    assert lines[-1] == "Choose another folder with --out, or start this one over with --force"
    assert (tmp_path / "config.json").read_bytes() == before
    opened(tmp_path).close()  # the refused one let go of it


def test_a_folder_that_is_older_than_a_setting_is_taken_up_at_its_default(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Newer(Config):
        positions: str = "learnt"

    @dataclass(frozen=True)
    class Nested:
        settings: Config
        seed: int = 0

    sines = Newer(positions="sines")
    for old, new, other in (
        (Config(), Newer(), sines),
        (Nested(Config()), Nested(Newer()), Nested(sines)),
    ):
        path = tmp_path / type(old).__name__
        with opened(path, old) as first:
            before = first.config_hash
            (path / "rows.jsonl").write_text(ROW)
        with opened(path, new) as again:
            assert again.config_hash == before  # its rows go on under the same digits
        with pytest.raises(ValueError, match='positions: not set there, "sines" now'):
            opened(path, other)


def test_starting_over_removes_the_run_and_nothing_else(tmp_path: Path) -> None:
    run(tmp_path, Training(5))
    (tmp_path / "my notes.txt").write_text("keep")
    (tmp_path / "checkpoint.pt.partial").write_text("what a kill left")
    with opened(tmp_path, Config(lr=0.5), start_over=True) as folder:
        assert folder.settings["config"]["lr"] == 0.5
        assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "lock", "my notes.txt"]


def test_starting_over_can_be_killed_at_any_moment(tmp_path: Path) -> None:
    run(tmp_path / "whole", Training(5))
    for removed in range(len(RUN_FILES)):
        path = tmp_path / str(removed)
        shutil.copytree(tmp_path / "whole", path)
        for name in RUN_FILES[:removed]:
            (path / name).unlink(missing_ok=True)
        run(path, Training(5))
        assert files(path) == files(tmp_path / "whole")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"experiment": "fig1"'])
def test_damaged_settings_are_an_error_with_a_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "rows.jsonl").write_text(ROW)
    with pytest.raises(ValueError, match=r"config\.json is damaged .* start over with --force"):
        opened(tmp_path)
    opened(tmp_path, start_over=True).close()
    opened(tmp_path).close()


def test_a_config_is_something_json_can_hold(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be written as JSON: .*set"):
        opened(tmp_path, {"lr": {1, 2}})
    with pytest.raises(ValueError, match="a dataclass or a mapping, not a str"):
        opened(tmp_path, "lr=1")


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot write in .*file/run: .*; choose another folder with --out"):
        opened(tmp_path / "file/run")
    tmp_path.chmod(0o500)
    process, events = start(open_as_nobody, tmp_path / "run")
    message = events.recv()
    process.join()
    tmp_path.chmod(0o700)
    assert (
        message == f"cannot write in {tmp_path / 'run'}: Permission denied; choose another folder with --out"
    )


# lock


def test_a_second_process_is_turned_away_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    process, events = start(hold, tmp_path)
    assert events.recv() == "open"
    with pytest.raises(
        FolderInUse, match=rf"is in use by process {process.pid} on {socket.gethostname()} since"
    ):
        run(tmp_path)
    assert process.is_alive()  # it does not wait for the other, which stays for a minute
    process.kill()
    process.join()
    assert run(tmp_path).reason == "finished"


def test_a_folder_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder.open(tmp_path, **CONFIG):
        raise ZeroDivisionError
    RunFolder.open(tmp_path, **CONFIG).close()


# manifest and labels


def test_the_manifest_says_where_the_rows_come_from(tmp_path: Path) -> None:
    run(tmp_path, Training(5))
    found = manifest(tmp_path)
    assert found["exit"] == found["sessions"][0]["exit"] == "finished"
    assert found["versions"]["torch"] == torch.__version__
    assert found["device"].startswith("cpu (")
    assert found["threads"] == torch.get_num_threads()
    assert (found["experiment"], found["scale"], found["run"], found["seeds"]) == ("fig1", "demo", "nap", 1)
    assert found["sessions"][0]["pid"] == os.getpid()
    assert found["started"] <= found["finished"]
    assert found["seconds"] > 0
    for row in rows.read(tmp_path):
        assert row["config"] == found["config"]
        assert row["commit"] == found["sessions"][0]["commit"] == str(source())


def git(folder: Path, *command: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *who, *command], check=True, capture_output=True)


def test_the_commit_is_that_of_the_checkout_that_tracks_the_code(tmp_path: Path) -> None:
    package = tmp_path / "src"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert source_of(package) == Source("unknown")
    git(tmp_path, "init")
    (tmp_path / "readme").write_text("")
    git(tmp_path, "add", "readme")
    git(tmp_path, "commit", "-m", "one")
    assert source_of(package) == Source("unknown")  # it lies in a checkout, but is not of it
    git(tmp_path, "add", "src")
    git(tmp_path, "commit", "-m", "two")
    clean = source_of(package)
    assert len(clean.commit) == 10
    assert not clean.dirty
    assert str(clean) == clean.commit
    (package / "__init__.py").write_text("changed = True")
    assert source_of(package) == Source(clean.commit, dirty=True)
    assert str(source_of(package)) == f"{clean.commit}+changes"


@pytest.mark.parametrize("program", ["bin/nap", "site-packages/nap/__main__.py", "nap/lab/cli/__main__.py"])
def test_the_manifest_notes_the_command_by_its_name(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [program, "run", "walk", "--out", "my results"])
    assert command() == ["nap", "run", "walk", "--out", "my results"]
