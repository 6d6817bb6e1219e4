"""`nap sweep` on this machine with workers and drivers killed: nothing lost, nothing run twice."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nap.lab.cli.main import main
from nap.lab.experiments import MODULES
from sweep_trials import (
    advanced,
    assert_same,
    kill_at_random,
    kill_at_work,
    sessions,
    sweeping,
    undisturbed,
    until,
    workers,
)

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
RUNS, STEPS = 2, ["--steps", "40"]
SIZE = ["--runs", str(RUNS), *STEPS]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    until(lambda: not workers("results"))  # those of a killed driver end by themselves


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), *STEPS)


def test_workers_killed_at_random_and_a_second_sweep_beside(expected: Path) -> None:
    more = ["--retries", "30", "--workers"]
    with sweeping(*SIZE, *more, "2") as first, sweeping(*SIZE, *more, "1") as second:
        kill_at_work("results", first)
        kill_at_random("results", first, random.Random(0), kills=2)
        out = first.said() + second.said()
    assert_same("results", expected, runs=RUNS)
    assert any("killed" in ends for ends in sessions("results").values())
    assert "its worker was killed by SIGKILL; to resume from its last checkpoint" in out


def test_drivers_are_killed_and_stopped_and_the_next_one_goes_on(expected: Path) -> None:
    with sweeping(*SIZE, "--workers", "2") as driver:
        until(lambda: len(advanced("results")) == 2, driver)
        driver.kill()
    until(lambda: not workers("results"))  # they save and end by themselves
    with sweeping(*SIZE, "--workers", "2", "--seconds-per-step", "0.1") as driver:
        until(lambda: len(advanced("results")) == 2, driver)
        driver.process.send_signal(signal.SIGINT)
        out = driver.said(code=75)
        assert "SIGINT: waiting for 2 runs to save" in out
        assert out.endswith("Stopped by SIGINT, 2 of 2 runs are left; the same command resumes them\n")
        assert not workers("results")
    assert [*sessions("results").values()].count(["stopped by SIGTERM"] * 2) == 2  # none was just killed
    with sweeping(*SIZE, "--workers", "2") as driver:
        assert "to resume from its last checkpoint" not in driver.said()  # nor failed
    assert_same("results", expected, runs=RUNS)


def test_a_run_that_always_fails_is_tried_again_and_told_and_the_others_finish(
    expected: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODULES, "counting", "sweep_tiny")
    monkeypatch.setenv("GIT_DIR", os.devnull)
    assert main(["sweep", "counting", *SIZE, "--broken", "1", "--retries", "1"]) == 1
    out = capfd.readouterr().out
    reason = f"RuntimeError: run 1 is broken (more in {Path.cwd()}/results/counting-demo/run-1/failure.txt)"
    assert f"run-1: {reason}; to resume from its last checkpoint" in out
    assert f"run-1: failed: {reason}; given up after 2 attempts without a checkpoint" in out
    assert "Results: results/counting-demo" in out
    assert "Traceback" in Path("results/counting-demo/run-1/failure.txt").read_text()
    ends = sessions("results")
    assert ends["run-0"] == ["finished"]
    assert main(["sweep", "counting", *SIZE]) == 0
    assert "2 runs, 1 finished already" in capfd.readouterr().out
    assert_same("results", expected, runs=RUNS)
    assert sessions("results")["run-0"] == ends["run-0"]
