"""`nap run` under faults: killed again and again, stopped, out of space, with numbers gone wild."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import shlex
import shutil
import signal
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

import tiny_experiment
from nap.lab import rows
from nap.lab.cli.main import main
from nap.lab.experiments import MODULES
from nap.lab.experiments.common import runs as common
from nap.lab.loops.population.continual_run import ContinualWork
from sessions import send, start
from small_work import manifest

FIG1 = ["run", "fig1", *shlex.split("--seeds 2 --images 256 --width 32")]


pytestmark = pytest.mark.multiprocess


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MODULES, "tiny", "tiny_experiment")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))


# real processes


def fig1(out: Path, events: Connection) -> None:
    """Four runs of six tasks by `nap run`; ends the process with the command's exit code."""
    size = ["--tasks", "6", "--epochs", "4", "--arms", "no norm", "LayerNorm", "NaP", "fresh"]
    os._exit(main([*FIG1, *size, "--out", str(out)]))


def below(out: Path | str, name: str) -> dict[str, bytes]:
    """The files of that name, by run."""
    return {path.parent.name: path.read_bytes() for path in Path(out).rglob(name)}


def wait_for_tasks(process: ForkServerProcess, out: Path, count: int) -> None:
    """Return when so many more tasks have a row for each of two seeds; first, rows may be cut back."""
    fewest = math.inf
    while (now := b"".join(below(out, "rows.jsonl").values()).count(b"\n")) < fewest + 2 * count:
        fewest = min(fewest, now)
        assert process.is_alive()
        time.sleep(0.01)


@pytest.mark.slow
def test_an_experiment_killed_again_and_again_ends_with_the_same_rows_and_parameters(tmp_path: Path) -> None:
    draws = random.Random(0)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    undisturbed, _ = start(fig1, unbroken)
    kill, stop = signal.SIGKILL, signal.SIGTERM
    for number, tasks in ((kill, 7), (stop, 3), (kill, 4), (stop, 3)):  # a run has 6
        process, _ = start(fig1, broken)
        wait_for_tasks(process, broken, tasks)
        time.sleep(draws.uniform(0, 0.03))
        send(process, number)
        process.join()
        assert process.exitcode == (75 if number == stop else -number)
    for process in (start(fig1, broken)[0], undisturbed):
        process.join()
        assert process.exitcode == 0
    assert len(below(unbroken, "rows.jsonl")) == 4
    for name in ("rows.jsonl", "checkpoint.pt"):
        assert below(broken, name) == below(unbroken, name)


# the command in this process


def test_an_experiment_stopped_inside_its_runs_goes_on_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*FIG1, "--tasks", "3", "--epochs", "2", "--out"]
    assert main([*words, "unbroken"]) == 0
    step, epochs = ContinualWork.step, itertools.count(1)

    def interrupted(work: ContinualWork) -> list[rows.Row]:
        if next(epochs) % 4 == 0:
            signal.raise_signal(signal.SIGTERM)
        return step(work)

    monkeypatch.setattr(ContinualWork, "step", interrupted)
    stops = 0
    while (code := main([*words, "broken"])) == 75:
        stops += 1
    assert code == 0
    runs = len(below("unbroken", "rows.jsonl"))
    assert stops >= runs >= 4
    assert next(epochs) == runs * 3 * 2 + 1, "an epoch was done twice"
    for name in ("rows.jsonl", "checkpoint.pt"):
        assert below("broken", name) == below("unbroken", name)


def test_numbers_gone_wild_end_their_run_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIG1, "--tasks", "1", "--epochs", "1", "--depth", "12", "--learning-rate", "1000"]) == 1
    said = capsys.readouterr().out
    wild = "failed: NotFinite: the loss of member 0 is not finite at step 2"
    runs = below("results", "config.json")
    assert {"no-norm-reset", "layernorm-reset", "nap-reset"} < set(runs)
    for name, content in runs.items():  # without norms, twelve layers of large weights overflow
        norm = json.loads(content)["config"]["arm"]["norm"]
        assert f"\n{name}: {wild if norm == 'none' else 'finished'}" in said
        assert manifest(Path("results/fig1-demo", name))["seeds"] == 2


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--learning-rat 1", "fig1 has no setting --learning-rat 1"),
        ("--learning-rat 1", "Did you mean --learning-rate?"),
        ("--learning-rate nan", "learning_rate=nan): learning_rate must be between 1e-12 and 1000"),
        ("--epochs -5", "epochs=-5): epochs must be at least 1"),
    ],
)
def test_bad_settings_are_refused_before_data_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, answer: str
) -> None:
    monkeypatch.setattr(common, "load", lambda *args, **options: pytest.fail("too early"))
    assert main([*FIG1, *words.split()]) == 2
    assert answer in capsys.readouterr().err
    assert not Path("results").exists()


@pytest.mark.usefixtures("no_space")
def test_a_full_disk_is_an_exit_code_of_its_own_with_path_and_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "tiny"]) == 1
    said = capsys.readouterr().out
    for name in ("first", "second"):
        path = Path("results/tiny-demo", name)
        full = f"{name}: failed: OSError: [Errno 28] {path}/checkpoint.pt was not saved: only 1.0 kB free"
        assert f"\n{full}; it needs 65.5 kB" in said
        assert not list(path.glob("*.partial"))


@pytest.mark.usefixtures("no_space")
def test_a_stop_that_cannot_be_saved_is_a_failure_and_nothing_new_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "tiny", "--mode", "stopped"]) == 1
    said = capsys.readouterr().out
    assert "first: failed: OSError: [Errno 28] results/tiny-demo/first/checkpoint.pt was not saved" in said
    assert "second" not in said
    assert "Results" not in said
    assert not Path("results/tiny-demo/second/rows.jsonl").exists()


def test_a_stop_in_the_last_unit_of_a_run_keeps_the_next_from_beginning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["run", "tiny", "--mode", "stopped", "--steps", "2"]  # the signal comes in the second
    assert main(words) == 75
    said = capsys.readouterr().out
    assert "first: finished" in said
    assert "second: not started (SIGTERM); the same command continues there" in said
    assert not Path("results/tiny-demo/second/rows.jsonl").exists()
    assert main(words) == 0
    assert rows.read("results").unique("run") == ["first", "second"]


def test_a_stop_in_the_last_unit_of_all_finds_everything_finished(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(tiny_experiment.EXPERIMENT, runs=lambda config: [tiny_experiment.run(config, "first")])
    monkeypatch.setattr(tiny_experiment, "EXPERIMENT", one)
    assert main(["run", "tiny", "--mode", "stopped", "--steps", "2"]) == 0
    assert "Results: results/tiny-demo" in capsys.readouterr().out
