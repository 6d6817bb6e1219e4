"""What a run takes up again, what it refuses to take up, and what it notes down on the way."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from nap.lab.runner import RunFolder, run_work
from nap.lab.runner.run import CheckpointTimer
from small_work import CONFIG, Training, files, manifest, run, stop_at


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
    with pytest.raises(ValueError, match=r"holds 0 bytes but should hold .* delete the folder"):
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
    heard: list[str] = []
    run(tmp_path, on_note=heard.append)
    assert "manifest.json is damaged" in heard[0]
    assert files(tmp_path) == before
    assert manifest(tmp_path)["sessions"][0]["from"] == 30


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
    with pytest.raises(ValueError, match="the state after loading is not the stored one"):
        run(tmp_path, Forgetful())


def test_a_checkpoint_from_another_run_is_refused(tmp_path: Path) -> None:
    stop_at(tmp_path / "a", 5)
    with RunFolder.open(tmp_path / "b", **{**CONFIG, "config": {"lr": 0.5}}) as folder:
        os.link(tmp_path / "a/checkpoint.pt", tmp_path / "b/checkpoint.pt")
        with pytest.raises(ValueError, match=r"belongs to configuration .* delete the folder to start"):
            run_work(Training(), folder, device=torch.device("cpu"))


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
    assert manifest(tmp_path)["sessions"][-1]["notes"] == heard


def test_checkpoints_take_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, saving = 0.0, 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    pace = CheckpointTimer(every_seconds=10, share=0.05, saved_at=clock)
    for _ in range(2000):
        clock += 1  # a unit
        if pace.is_due():
            with pace.measured():
                clock += 3
            saving += 3
    assert 0.03 < saving / clock <= 0.05
    quick = CheckpointTimer(every_seconds=10, share=0.05, saved_at=clock)
    clock += 9
    assert not quick.is_due()
    clock += 1
    assert quick.is_due()


def test_it_works_in_any_thread(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, tmp_path).result().reason == "finished"


def test_an_error_of_the_work_is_noted_and_passed_on(tmp_path: Path) -> None:
    class Broken(Training):
        def step(self) -> list:
            return [] if self.done == 3 else super().step()

    with pytest.raises(AssertionError, match="left `done` at 3"):
        run(tmp_path, Broken())
    assert manifest(tmp_path)["exit"].startswith("failed: AssertionError")
