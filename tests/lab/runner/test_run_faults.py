"""A run survives kills at any moment, signals, a full disk and damaged files, with the same result."""

from __future__ import annotations

import io
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nap.lab import rows
from nap.lab.runner import NotFinite, checkpoint
from nap.lab.runner.run import CheckpointTimer
from sessions import finish, long_unit, send, session, session_killed_at, session_on_a_full_disk, start
from small_work import Training, files, manifest, run, stop_at

pytestmark = pytest.mark.multiprocess
UNITS = 150
FEW = 30


# kills


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    finish(tmp_path / "unbroken", UNITS)
    path = tmp_path / "killed"
    draws = random.Random(0)
    hit: Counter[str] = Counter()
    while hit.total() < 24:
        process, events = start(session, path, UNITS, 2.0)
        for _ in range(draws.randrange(1, 30)):  # a unit with its save sends nine events
            last = events.recv()[0]
        time.sleep(draws.uniform(0, 0.004))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it was finished before it could be killed"
        hit[last] += 1
        events.close()
    assert hit["unit"] >= 1
    assert hit["fsync"] + hit["replace"] >= 5, "kills must fall into saves too"
    state, _ = checkpoint.load_latest(path)
    assert state is not None
    assert 0 < state["done"] < UNITS
    finish(path, UNITS)
    assert files(path) == files(tmp_path / "unbroken")
    ends = [entry["exit"] for entry in manifest(path)["sessions"]]
    assert ends[-1] == "finished"
    assert set(ends[:-1]) == {"killed"}


@pytest.mark.slow
def test_a_kill_before_any_step_to_the_disk_changes_nothing(tmp_path: Path) -> None:
    finish(tmp_path / "unbroken", total=3)
    for step in itertools.count():  # from the new folder's config.json to the finished run's manifest
        path = tmp_path / str(step)
        process, _ = start(session_killed_at, path, 3, step)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        finish(path, total=3)
        assert files(path) == files(tmp_path / "unbroken"), f"killed before step {step}"
        assert not list(path.glob("*.partial"))
    assert step > 3 * 8  # a save is four fsyncs and renames, its rows one, the manifest three


# signals


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few units in one session."""
    path = tmp_path_factory.mktemp("unbroken")
    finish(path, FEW)
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_saves_stops_and_resumes_exactly(
    tmp_path: Path, unbroken: Path, number: signal.Signals
) -> None:
    process, events = start(session, tmp_path, FEW, 5.0)
    while events.recv() != ("unit", 5):
        pass
    send(process, number)
    process.join()
    assert process.exitcode == 75
    saved = checkpoint.load(tmp_path / "checkpoint.pt")
    assert 5 <= saved["done"] < FEW
    assert saved["rows_bytes"] == (tmp_path / "rows.jsonl").stat().st_size
    assert manifest(tmp_path)["exit"] == f"stopped by {number.name}"
    assert manifest(tmp_path)["finished"] is None
    finish(tmp_path, FEW)
    assert files(tmp_path) == files(unbroken)


def test_a_signal_after_the_last_look_at_the_clock_saves_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_yet(timer: CheckpointTimer) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return False

    monkeypatch.setattr(CheckpointTimer, "is_due", not_yet)
    assert run(tmp_path).done == 1
    assert checkpoint.load(tmp_path / "checkpoint.pt")["done"] == 1


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    process, events = start(long_unit, tmp_path)
    assert events.recv() == "deep in it"
    send(process, signal.SIGINT)
    assert events.recv() == "SIGINT"
    send(process, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    assert manifest(tmp_path)["exit"].startswith("failed: KeyboardInterrupt")


def test_signal_handlers_are_put_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    outcome = run(tmp_path, on_progress=lambda work: signal.raise_signal(signal.SIGUSR1))
    assert (outcome.reason, outcome.exit_code, outcome.signal, outcome.done) == ("stopped", 75, "SIGUSR1", 0)
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]


# full disk, numbers that are not finite, damaged files


def test_a_full_disk_stops_the_run_and_spoils_nothing(tmp_path: Path, unbroken: Path) -> None:
    process, events = start(session_on_a_full_disk, tmp_path, FEW, 7)
    message = events.recv()
    process.join()
    assert process.exitcode == 1
    assert f"{tmp_path / 'checkpoint.pt'} was not saved: File too large; it needs 70.6 kB" in message
    assert not list(tmp_path.glob("*.partial"))
    state, notes = checkpoint.load_latest(tmp_path)
    assert state is not None
    assert (state["done"], notes) == (6, [])
    assert manifest(tmp_path)["exit"].startswith("failed: OSError")
    finish(tmp_path, FEW)
    assert files(tmp_path) == files(unbroken)


def test_a_loss_that_is_not_finite_stops_before_the_update(tmp_path: Path) -> None:
    with pytest.raises(NotFinite, match="step 14, member 0: the loss is nan"):
        run(tmp_path, Training(nan_at=7))
    assert manifest(tmp_path)["exit"] == "not finite: step 14, member 0: the loss is nan"
    assert manifest(tmp_path)["finished"] is None
    state = checkpoint.load(tmp_path / "checkpoint.pt")
    assert state["done"] == 7
    assert all(tensor.isfinite().all() for tensor in state["work"]["model"].values())
    assert rows.read(tmp_path).values("task") == [1, 2, 3, 4, 5, 6, 7]


def flipped(raw: bytes) -> bytes:
    """One bit of a weight is wrong."""
    weight = torch.load(io.BytesIO(raw), weights_only=True)["state"]["work"]["model"]["0.weight"]
    at = raw.index(weight.numpy().tobytes())
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "truncated": lambda raw: raw[:-100],
    "one bit flipped": flipped,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_latest_checkpoint_resumes_from_the_previous(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole)
    stop_at(broken, 5)
    latest = broken / "checkpoint.pt"
    latest.write_bytes(damage(latest.read_bytes()))
    assert run(broken).reason == "finished"
    assert files(broken) == files(whole)
    warning = capsys.readouterr().err
    assert warning.startswith("warning: checkpoint.pt is refused")
    assert warning.count("\n") == 1
    last = manifest(broken)["sessions"][-1]
    assert last["from"] == 4
    assert warning == f"warning: {last['notes'][0]}\n"
