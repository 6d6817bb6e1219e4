"""A run survives kills at any moment, signals, a full disk and damaged files, with the same result."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from nap.lab import rows
from nap.lab.runs import NotFinite, RunFolder, carry_out, checkpoint
from nap.lab.runs.carry import Pace
from small_work import (
    Training,
    files,
    finish,
    long_unit,
    run,
    sitting,
    sitting_killed_at,
    sitting_on_a_full_disk,
    start,
    wait_for_unit,
)


def manifest(path: Path) -> dict:
    return json.loads((path / "manifest.json").read_text())


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 units in one sitting."""
    path = tmp_path_factory.mktemp("unbroken")
    finish(path, total=200)
    return path


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(tmp_path: Path, unbroken: Path) -> None:
    draws = random.Random(0)
    hit: Counter[str] = Counter()
    while hit.total() < 24:
        process, events = start(sitting, tmp_path, 200, 2.0)
        deadline = time.monotonic() + 60
        for _ in range(draws.randrange(1, 60)):  # a unit with its save sends nine events
            assert events.poll(deadline - time.monotonic())
            last = events.recv()[0]
        time.sleep(draws.uniform(0, 0.002))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it was finished before it could be killed"
        hit[last] += 1
        events.close()
    assert hit["unit"] >= 1
    assert hit["fsync"] + hit["replace"] >= 5, "kills must fall into saves too"
    done = checkpoint.load_latest(tmp_path)[0]
    assert done is not None
    assert 0 < done["done"] < 200
    finish(tmp_path, total=200)
    assert files(tmp_path) == files(unbroken)
    ends = [entry["exit"] for entry in manifest(tmp_path)["sittings"]]
    assert ends[-1] == "finished"
    assert set(ends[:-1]) == {"killed"}


@pytest.mark.slow
def test_a_kill_before_any_step_to_the_disk_changes_nothing(tmp_path: Path) -> None:
    finish(tmp_path / "unbroken", total=3)
    for operation in range(24):  # from the new folder's config.json to the third unit's checkpoint
        path = tmp_path / str(operation)
        process, _ = start(sitting_killed_at, path, 3, operation)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        finish(path, total=3)
        assert files(path) == files(tmp_path / "unbroken"), f"killed before operation {operation}"
        assert not list(path.glob("*.partial"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_saves_stops_and_resumes_exactly(
    tmp_path: Path, unbroken: Path, number: signal.Signals
) -> None:
    process, events = start(sitting, tmp_path, 200, 5.0)
    wait_for_unit(events, 5)
    os.kill(process.pid or 0, number)
    process.join(30)
    assert process.exitcode == 75
    saved = checkpoint.load(tmp_path / "checkpoint.pt")
    assert 5 <= saved["done"] < 200
    assert saved["rows_bytes"] == (tmp_path / "rows.jsonl").stat().st_size
    assert manifest(tmp_path)["exit"] == f"stopped by {number.name}"
    assert manifest(tmp_path)["finished"] is None
    finish(tmp_path, total=200)
    assert files(tmp_path) == files(unbroken)


def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    process, events = start(long_unit, tmp_path)
    assert events.recv() == "deep in it"
    os.kill(process.pid or 0, signal.SIGINT)
    process.join(0.2)
    assert process.is_alive()
    os.kill(process.pid or 0, signal.SIGINT)
    process.join(30)
    assert process.exitcode == 130
    assert manifest(tmp_path)["exit"].startswith("failed: KeyboardInterrupt")


def test_signal_handlers_are_put_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    outcome = run(tmp_path, on_progress=lambda work: signal.raise_signal(signal.SIGUSR1))
    assert (outcome.reason, outcome.exit_code, outcome.signal, outcome.done) == ("stopped", 75, "SIGUSR1", 0)
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]


def test_a_full_disk_stops_the_run_and_spoils_nothing(tmp_path: Path, unbroken: Path) -> None:
    process, events = start(sitting_on_a_full_disk, tmp_path, 200, 7)
    message = events.recv()
    process.join(30)
    assert process.exitcode == 1
    assert f"{tmp_path / 'checkpoint.pt'} was not saved: File too large; it needs 0.07 MB" in message
    assert not list(tmp_path.glob("*.partial"))
    state, notes = checkpoint.load_latest(tmp_path)
    assert state is not None
    assert (state["done"], notes) == (6, [])
    assert manifest(tmp_path)["exit"].startswith("failed: OSError")
    finish(tmp_path, total=200)
    assert files(tmp_path) == files(unbroken)


def test_a_loss_that_is_not_finite_stops_before_the_update(tmp_path: Path) -> None:
    work = Training(nan_at=7)
    with pytest.raises(NotFinite, match="step 14, member 0: the loss is nan"):
        run(tmp_path, work)
    assert manifest(tmp_path)["exit"] == "not finite: step 14, member 0: the loss is nan"
    assert manifest(tmp_path)["finished"] is None
    state = checkpoint.load(tmp_path / "checkpoint.pt")
    assert state["done"] == 7
    assert all(tensor.isfinite().all() for tensor in state["work"]["model"].values())
    assert rows.read(tmp_path).values("task") == [1, 2, 3, 4, 5, 6, 7]


def test_damaged_latest_checkpoint_resumes_from_the_previous(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole)
    stop_at(broken, 5)
    latest = broken / "checkpoint.pt"
    latest.write_bytes(latest.read_bytes()[:-100])
    outcome = run(broken)
    assert outcome.reason == "finished"
    assert files(broken) == files(whole)
    warning = capsys.readouterr().err
    assert warning.startswith("warning: checkpoint.pt is refused")
    assert warning.count("\n") == 1
    assert manifest(broken)["sittings"][-1]["notes"] == list(outcome.notes)
    assert manifest(broken)["sittings"][-1]["from"] == 4


def stop_at(path: Path, unit: int, work: Training | None = None) -> None:
    """A sitting that ends with the checkpoint of that unit."""

    def stop(work: Training) -> None:
        if work.done == unit:
            signal.raise_signal(signal.SIGTERM)

    assert run(path, work, on_progress=stop).done == unit


def test_a_torn_last_row_is_cut_off(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    stop_at(tmp_path / "torn", 5)
    with (tmp_path / "torn/rows.jsonl").open("a") as file:
        file.write('{"arm": "Adam", "se')
    run(tmp_path / "torn")
    assert files(tmp_path / "torn") == files(tmp_path / "whole")


def test_rows_that_were_deleted_are_an_error(tmp_path: Path) -> None:
    stop_at(tmp_path, 5)
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"holds 0 bytes but should hold .* start the run over with --force"):
        run(tmp_path)


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    run(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path.name != "lock"}
    work = Training()
    outcome = run(tmp_path, work, on_progress=lambda work: pytest.fail("there is nothing to do"))
    assert (outcome.reason, outcome.exit_code, outcome.done) == ("finished", 0, 30)
    assert work.done == 0
    assert before == {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir() if p.name != "lock"}
    (tmp_path / "rows.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"rows.jsonl has 3 bytes, but .* when the run was finished"):
        run(tmp_path)


def test_a_lost_manifest_costs_no_work(tmp_path: Path) -> None:
    run(tmp_path)
    before = files(tmp_path)
    (tmp_path / "manifest.json").write_text('{"torn')
    outcome = run(tmp_path, checkpoint_every_seconds=60.0, on_note=lambda note: None)
    assert "manifest.json is damaged" in outcome.notes[0]
    assert files(tmp_path) == before
    assert manifest(tmp_path)["sittings"][0]["from"] == 30


def test_a_work_of_another_shape_is_refused(tmp_path: Path) -> None:
    stop_at(tmp_path, 5)
    with pytest.raises(ValueError, match=r"(?s)does not fit this work \(RuntimeError: .*size mismatch"):
        run(tmp_path, Training(hidden=16))


def test_a_work_that_takes_up_something_else_is_refused(tmp_path: Path) -> None:
    class Forgetful(Training):
        def load_state_dict(self, state: dict) -> None:
            self.done = state["done"]
            self.model.load_state_dict(state["model"])

    stop_at(tmp_path, 5)
    with pytest.raises(ValueError, match="what it took up is not what was stored"):
        run(tmp_path, Forgetful())


def test_a_checkpoint_from_another_run_is_refused(tmp_path: Path) -> None:
    stop_at(tmp_path / "a", 5)
    other = {"experiment": "fig1", "scale": "demo", "run": "nap", "config": {"seeds": 1, "lr": 0.5}}
    with RunFolder.open(tmp_path / "b", **other) as folder:  # type: ignore[arg-type]
        os.link(tmp_path / "a/checkpoint.pt", tmp_path / "b/checkpoint.pt")
        with pytest.raises(ValueError, match=r"belongs to configuration .* start the run over with --force"):
            carry_out(Training(), folder)


def test_another_number_of_threads_is_noted(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    stop_at(tmp_path, 5)
    torch.set_num_threads(threads + 1)
    heard: list[str] = []
    try:
        outcome = run(tmp_path, on_note=heard.append)
    finally:
        torch.set_num_threads(threads)
    assert outcome.reason == "finished"
    assert len(heard) == 1
    assert f"threads {threads} → {threads + 1}" in heard[0]
    assert "last bits" in heard[0]
    assert manifest(tmp_path)["sittings"][-1]["notes"] == heard


def test_checkpoints_take_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, saving = 0.0, 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    pace = Pace(every_seconds=10, share=0.05, ended=clock)
    for _ in range(2000):
        clock += 1  # a unit
        if pace.is_due():
            with pace.measured():
                clock += 3
            saving += 3
    assert 0.03 < saving / clock <= 0.05
    quick = Pace(every_seconds=10, share=0.05, ended=clock)
    clock += 9
    assert not quick.is_due()
    clock += 1
    assert quick.is_due()


def test_it_works_in_any_thread(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, tmp_path).result().reason == "finished"


def test_an_error_of_the_work_is_noted_and_passed_on(tmp_path: Path) -> None:
    class Broken(Training):
        def advance(self) -> list:
            return [] if self.done == 3 else super().advance()

    with pytest.raises(AssertionError, match="left `done` at 3"):
        run(tmp_path, Broken())
    assert manifest(tmp_path)["exit"].startswith("failed: AssertionError")
