"""Content that was changed, or is odd: none of it is taken for a result, and none ends in a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import injections
import small_work
from nap.lab import rows
from nap.lab.board import Board
from nap.lab.claims import folders
from nap.lab.claims.samples import UNFINISHED
from nap.lab.cli.main import main, run_command
from nap.lab.experiments import MODULES
from nap.lab.experiments.running import run
from nap.lab.experiments.walk import EXPERIMENT, WalkConfig
from nap.lab.launch import heartbeat
from nap.lab.launch.run_state import RunState, read_state
from nap.lab.options import Request, RunOptions
from nap.lab.report.facts import read_run
from nap.lab.runner import RunFolder, checkpoint, run_work
from nap.lab.runner.lock import Lock
from nap.lab.runner.signals import StopRequest

CONFIG = WalkConfig(seeds=3, width=16, steps=60, trajectories=2)
STATES = {"finished": 60, "half-done": 31}
FILES = {
    "rows.jsonl": injections.TEXT,
    "manifest.json": injections.TEXT,
    "config.json": injections.TEXT,
    "checkpoint.pt": injections.ANY,
    "checkpoint.previous.pt": injections.ANY,
    "progress.json": injections.TEXT,
    "lock": injections.ANY,
    "worker.log": injections.ANY,
}
CASES = [
    pytest.param(state, name, injection, id=f"{state}-{name}-{injection.__name__}")
    for state in STATES
    for name, of in FILES.items()
    for injection in of
    if not (state == "finished" and name == "checkpoint.previous.pt")
]


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def begun(results: Path) -> int:
    """`nap run walk`, without the reading of words and the verdicts at its end, which take a while."""
    return run([(EXPERIMENT, Request("walk", RunOptions(out=results), CONFIG))], print_verdicts=False)


def answer(act: Callable[[], int]) -> Answer:
    """What a command answers; one that waits for ever fails the test."""
    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(600)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = act()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Answer(code, out.getvalue(), err.getvalue())


def _too_long(number: int, frame: FrameType | None) -> None:
    raise AssertionError("it waits for ever")


def done(path: Path, units: int) -> Path:
    """The run's folder after so many units, with what a sweep's worker leaves, too."""
    stop = StopRequest()

    def look_out(work: object) -> None:
        if work.done == units < 60:  # type: ignore[attr-defined]
            stop.signal = "SIGTERM"

    (walk,) = EXPERIMENT.runs(CONFIG)
    home = path / "walk-demo" / walk.name
    with RunFolder.open(home, experiment="walk", scale="demo", run=walk.name, config=walk.config) as folder:
        work = walk.start(torch.device("cpu"))
        often: dict[str, Any] = {"checkpoint_every_seconds": 0.0, "save_share": 1e6} if units < 60 else {}
        run_work(work, folder, device=torch.device("cpu"), stop=stop, on_progress=look_out, **often)
    (home / "progress.json").write_text(json.dumps({"done": units, "total": 60, "unit": "steps"}))
    (home / "worker.log").write_text("walks: begun\n")
    return home


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A results folder in each state, as it is without injections."""
    root = tmp_path_factory.mktemp("templates")
    for state, units in STATES.items():
        done(root / state, units)
    assert (root / "half-done/walk-demo/walks/checkpoint.previous.pt").exists()
    return {state: root / state for state in STATES}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("state", "name", "injection"), CASES)
def test_no_injection_is_taken_for_a_result(
    templates: dict[str, Path], tmp_path: Path, state: str, name: str, injection: Callable
) -> None:
    truth = (templates["finished"] / "walk-demo/walks/rows.jsonl").read_bytes()
    settings = (templates["finished"] / "walk-demo/walks/config.json").read_bytes()
    for seed in range(injections.OFTEN.get(injection, 1)):
        results = tmp_path / str(seed)
        shutil.copytree(templates[state], results)
        path = results / "walk-demo" / "walks" / name
        injection(path, random.Random(f"{state} {name} {injection.__name__} {seed}"))
        held = path.read_bytes() if path.is_file() else b""
        victim = injections.victim(path)
        before = victim.read_bytes() if victim.exists() else None

        facts = read_run(path.parent)
        if not facts.problems:
            assert (path.parent / "rows.jsonl").read_bytes() == truth
            assert facts.verified
        assert read_state(path.parent).state in ("new", "begun", "damaged", "in use", "finished", "failed")
        check_what_is_judged(path.parent, state, truth)
        said = answer(partial(run_command, ["run"], partial(begun, results)))
        one_line(said)
        if said.code == 0:
            assert (path.parent / "rows.jsonl").read_bytes() == truth
            assert (path.parent / "config.json").read_bytes() == settings
        if name == "rows.jsonl" and held:
            kept = [file.read_bytes() for file in path.parent.glob("rows*.jsonl") if file.is_file()]
            assert held in kept or state == "half-done", "rows were lost"
        assert (victim.read_bytes() if victim.exists() else None) == before, "written through a link"


def check_what_is_judged(home: Path, state: str, truth: bytes) -> None:
    """No claim is decided on rows that are not the finished ones, unless they are said to be unverified."""
    if not [*home.glob("rows.jsonl"), *home.glob("manifest.json")]:
        with pytest.raises(ValueError, match=r"no rows\.jsonl in"):
            folders.read_with_damage(home.parents[1])
        return
    read = folders.read_with_damage(home.parents[1])
    unmarked = [row for of in read.by_folder.values() for row in of if UNFINISHED not in row]
    if unmarked and not read.unverified:
        assert state == "finished"
        assert (home / "rows.jsonl").read_bytes() == truth
    assert not (unmarked and read.damage)


def one_line(said: Answer) -> None:
    """An error is a line, or several that say what to do; never a traceback."""
    assert said.code in (0, 1, 2, 3)
    assert "Traceback" not in said.out + said.err
    if said.code in (2, 3):
        assert said.err.strip()
        assert len(said.err) < 1000


# one by one


def test_rows_without_checkpoint_and_manifest_are_kept(tmp_path: Path) -> None:
    small_work.run(tmp_path)
    before = (tmp_path / "rows.jsonl").read_bytes()
    for name in ("manifest.json", "checkpoint.pt"):
        (tmp_path / name).unlink()
    heard: list[str] = []
    small_work.run(tmp_path, on_note=heard.append)
    (kept,) = tmp_path.glob("rows.kept-*.jsonl")
    assert kept.read_bytes() == before == (tmp_path / "rows.jsonl").read_bytes()
    assert len(heard) == 1
    assert kept.name in heard[0]


def test_rows_that_a_kill_left_before_the_first_checkpoint_are_written_anew(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(work: small_work.Training) -> None:
        if work.done == 3:
            raise Killed

    with pytest.raises(Killed):
        small_work.run(tmp_path, on_progress=kill, checkpoint_every_seconds=60.0)
    assert (tmp_path / "rows.jsonl").stat().st_size > 0
    small_work.run(tmp_path)
    assert not list(tmp_path.glob("rows.kept-*"))
    assert rows.read(tmp_path).values("task") == list(range(1, 31))


@pytest.mark.parametrize("gone", [["config.json"], ["config.json", "manifest.json", "checkpoint.pt"]])
def test_results_are_not_relabelled(tmp_path: Path, gone: list[str]) -> None:
    small_work.run(tmp_path)
    before = (tmp_path / "rows.jsonl").read_bytes()
    for name in gone:
        (tmp_path / name).unlink()
    other = {**small_work.CONFIG, "config": {"seeds": 1, "lr": 1e-3}}
    with pytest.raises(ValueError, match=r"config\.json is gone, and the rows beside it are of"):
        RunFolder.open(tmp_path, **other)
    assert small_work.run(tmp_path).reason == "finished"  # with the settings that it was begun with
    assert (tmp_path / "rows.jsonl").read_bytes() == before


def test_a_config_that_was_edited_labels_nothing(tmp_path: Path) -> None:
    small_work.run(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("0.01", "0.02"))
    other = {**small_work.CONFIG, "config": {"seeds": 1, "lr": 2e-2}}
    with pytest.raises(ValueError, match=r"config\.json is damaged \(it was edited: it is configuration"):
        RunFolder.open(tmp_path, **other)
    assert any("was edited" in problem for problem in read_run(tmp_path).problems)


def test_claims_name_what_is_damaged_and_do_not_all_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        done(tmp_path / name, 60)
    injections.changed_digit(tmp_path / "one/walk-demo/walks/rows.jsonl", random.Random(0))
    assert main(["claims", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"warning: {tmp_path}/one/walk-demo/walks is damaged: rows.jsonl is not what")
    assert said.err.count("\n") == 1
    assert "the run walks is damaged" in " ".join(said.out.split())
    assert main(["report", str(tmp_path)]) == 0
    assert "rows.jsonl is not what the run wrote" in (tmp_path / "report.html").read_text()


def test_older_folders_are_taken_up_and_said_to_be_unverified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = done(tmp_path, 60)
    manifest = json.loads((home / "manifest.json").read_text())
    older = {key: value for key, value in manifest.items() if "sha256" not in key}
    (home / "manifest.json").write_text(json.dumps(older))
    assert read_state(home).state == "finished"
    assert main(["claims", str(tmp_path)]) in (0, 1)
    assert "note: 1 of 1 runs are without a checksum of their rows" in capsys.readouterr().err
    assert not read_run(home).verified
    assert read_run(home).problems == ()


def test_a_checkpoint_that_is_older_than_checksums_is_taken_up(tmp_path: Path) -> None:
    small_work.stop_at(tmp_path, 5)
    path = tmp_path / "checkpoint.pt"
    state = checkpoint.load(path)
    del state["rows_sha256"]
    checkpoint.save(path, state)
    heard: list[str] = []
    small_work.run(tmp_path, on_note=heard.append)
    assert ["older than checksums of rows" in line for line in heard] == [True]
    assert rows.read(tmp_path).values("task") == list(range(1, 31))


# sweeps


def test_a_held_lock_that_names_nobody_is_in_use(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    for text in ("{}", "[]", "null", '{"pid": 1}', "[" * 100_000):
        (tmp_path / "lock").write_text(text)
        assert read_state(tmp_path) == RunState("in use", "in use by a process that left no name")
    lock.release()


@pytest.mark.parametrize(
    "told",
    [
        {"done": "two", "total": 4, "unit": "steps"},
        {"done": 1, "total": 4, "unit": []},
        {"done": 1.5, "total": 4, "unit": "steps"},
        {"done": -1, "total": 4, "unit": "steps"},
        {"done": 10**30, "total": 4, "unit": "steps"},
        {},
        [],
        4,
    ],
)
def test_odd_progress_is_none(tmp_path: Path, told: object) -> None:
    (tmp_path / "progress.json").write_text(json.dumps(told))
    assert heartbeat.read(tmp_path) is None


def test_a_sweep_names_a_damaged_run_and_does_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODULES, "tiny", "tiny_experiment")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "tiny"]) == 0
    first, second = (Path("results/tiny-demo", name) for name in ("first", "second"))
    held = (first / "rows.jsonl").read_bytes()
    (first / "rows.jsonl").write_bytes(held.replace(b"1.0", b"9.0", 1))
    (second / "manifest.json").write_text('{"sessions": [{}]}')
    capsys.readouterr()
    assert main(["sweep", "tiny", "--dry-run"]) == 0
    assert "2 damaged" in capsys.readouterr().out
    assert main(["sweep", "tiny"]) == 1
    said = capsys.readouterr()
    assert "1 damaged" in said.out
    assert "first: damaged: results/tiny-demo/first/rows.jsonl is not what the run wrote" in " ".join(
        said.out.replace(str(tmp_path) + "/", "").split()
    )
    assert "second: finished" in said.out
    assert "Traceback" not in said.out + said.err
    assert read_state(second).state == "finished"


def test_nothing_is_written_into_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a symbolic link"):
        small_work.run(tmp_path / "run")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("name", ["manifest.json.partial", "checkpoint.pt.partial", "failure.txt.partial"])
def test_what_is_written_aside_is_not_written_through_a_link(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(victim)
    assert small_work.run(tmp_path / "run").reason == "finished"
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_tensorboard_writes_into_a_folder_of_its_own_only(tmp_path: Path, kind: str) -> None:
    theirs, events = tmp_path / "theirs", tmp_path / "tensorboard"
    theirs.mkdir()
    events.symlink_to(theirs) if kind == "link" else os.mkfifo(events)
    with pytest.raises(ValueError, match="tensorboard is no folder of event files; remove it"):
        Board(events, [{"arm": "NaP", "task": 1, "loss": 0.5}])
    assert list(theirs.iterdir()) == []


def test_a_report_replaces_files_only_and_survives_an_odd_tuning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "walk-demo-tuning").mkdir()
    (tmp_path / "walk-demo-tuning" / "tuned.json").write_text("[" * 100_000)
    small_work.run(tmp_path / "runs" / "one")
    assert main(["report", str(tmp_path)]) == 0
    os.mkfifo(tmp_path / "pipe.html")
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "pipe.html")]) == 2
    assert "is no file that a report can replace" in capsys.readouterr().err
    assert (tmp_path / "pipe.html").is_fifo()


def test_a_figure_whose_rows_lack_a_column_does_not_stop_the_page(tmp_path: Path) -> None:
    home = done(tmp_path, 60)
    for name in ("manifest.json", "config.json"):
        (home / name).unlink()
    kept = [{k: v for k, v in row.items() if k != "value"} for row in rows.read(home)]
    (home / "rows.jsonl").write_text("".join(f"{rows.line(row)}\n" for row in kept))
    assert main(["report", str(tmp_path)]) == 0
    assert "Not drawn" in (tmp_path / "report.html").read_text()


def test_a_resume_that_cannot_be_exact_says_so_in_manifest_and_report(tmp_path: Path) -> None:
    class Emulated(small_work.Training):
        not_restored = ""

        def load_state_dict(self, state: dict) -> None:
            super().load_state_dict(state)
            self.not_restored = "emulators cannot be saved"

    small_work.stop_at(tmp_path, 5)
    heard: list[str] = []
    small_work.run(tmp_path, Emulated(), on_note=heard.append)
    not_exact = "this resume is not exact, rows differ from those of an unbroken run"
    expected = f"{not_exact}: emulators cannot be saved"
    assert heard == [expected] == small_work.manifest(tmp_path)["sessions"][-1]["notes"]
    assert read_run(tmp_path).notes == [expected]
    small_work.run(tmp_path / "exact", on_note=heard.append)
    assert heard == [expected]
