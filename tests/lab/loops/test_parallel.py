"""One run on several processes: the numbers of one process, one writer, and no process left waiting."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from nap.lab import rows
from nap.lab.cli.main import main
from nap.lab.experiments import MODULES
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.language.language_model_run import LanguageModelWork
from nap.lab.loops.language.settings import NAP, LanguageModelConfig
from nap.lab.runner import distributed
from nap.lab.runner.checkpoint import checksum, tensors
from nap.lab.runner.distributed import ProcessGroup, ProcessLost
from nap.lab.runner.work import NotFinite
from tiny_reading import SMALL
from two_processes import CPU, both

pytestmark = pytest.mark.multiprocess
SUPPORT = Path(__file__).parents[2] / "support"
CONFIGS = {
    "untied": SMALL,
    "tied": replace(SMALL, tie_embeddings=True, activation_checkpointing=True, grad_accum_steps=1),
}
WAYS: tuple[distributed.Parallel, ...] = ("ddp", "fsdp")
FROM_ONE = {("ddp", "untied"), ("fsdp", "tied")}  # two processes resume these from the state of one
Row = dict[str, Any]


@pytest.fixture(autouse=True)
def _data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAP_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(MODULES, "tiny-reading", "tiny_reading")
    monkeypatch.setitem(MODULES, "tiny", "tiny_experiment")
    monkeypatch.chdir(tmp_path)


def work(config: LanguageModelConfig = SMALL) -> LanguageModelWork:
    return LanguageModelWork(NetworkRun(NAP, config, 0, {}), CPU)


def finished(work: LanguageModelWork) -> list[Row]:
    found: list[Row] = []
    while work.done < work.total:
        found += work.step()
    return found


def assert_alike(found: list[Row], expected: list[Row]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            assert one[key] == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), key


# the numbers


def tokens() -> torch.Tensor:
    return torch.arange(20).reshape(2, 10)


def learn(config: LanguageModelConfig) -> Row:
    """What a test wants to know of a run."""
    run, found = work(config), []
    found += run.step()
    state = copy.deepcopy(run.state_dict())
    found += finished(run)
    ratios = run.trainer.projector.norm_ratios()  # type: ignore[union-attr]
    return {"rows": found, "state": state, "ratios": ratios, "logits": run.trainer.logits(tokens())}


def go_on(config: LanguageModelConfig, state: Row) -> list[Row]:
    run = work(config)
    run.load_state_dict(copy.deepcopy(state))  # what goes to two processes lies in memory that they share
    if run.trainer.parallel.rank == 0:
        assert checksum(run.state_dict()) == checksum(state)
    else:
        run.state_dict()
    return finished(run)


def one_wild() -> str:
    """The second process alone meets a loss that is not finite, at the second update."""
    run = work()
    loss, calls = run.trainer._loss, []

    def wild(strings: torch.Tensor) -> Any:
        calls.append(1)
        found, right = loss(strings)
        return (found * torch.nan if run.trainer.parallel.rank == 1 and len(calls) == 3 else found), right

    run.trainer._loss = wild
    before = {name: p.detach().clone() for name, p in run.trainer.model.named_parameters()}
    with pytest.raises(NotFinite) as caught:
        run.step()
    moved = [not torch.equal(p, before[name]) for name, p in run.trainer.model.named_parameters()]
    assert any(moved), "the first update was made"
    return str(caught.value)


def everything(group: ProcessGroup, states: dict[str, Row]) -> Row:
    found: Row = {}
    for way in WAYS:
        group.parallel = way
        for name, config in CONFIGS.items():
            found[f"{way} {name}"] = learn(config)
            if (way, name) in FROM_ONE:
                found[f"{way} {name} from one"] = go_on(config, states[name])
        found[f"{way} wild"] = one_wild()
    return found


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    """Losses, norms, clipping in parts, radii, answers; a state of either goes on with the other."""
    alone = {name: learn(config) for name, config in CONFIGS.items()}
    assert (
        min(row["gradient_norm"] for of in alone.values() for row in of["rows"] if "kind" not in row) > 0.3
    ), "nothing to clip"
    states = {name: of["state"] for name, of in alone.items()}
    first, second = both(everything, tmp_path / "processes", states)
    for name, config in CONFIGS.items():
        expected = alone[name]["rows"]
        shapes = [t.shape for t in tensors(states[name])]
        for way in WAYS:
            found = first[f"{way} {name}"]
            assert_alike(found["rows"], expected)
            assert second[f"{way} {name}"]["rows"] == found["rows"]
            assert max(abs(ratio - 1) for ratio in found["ratios"].values()) < 1e-5
            torch.testing.assert_close(found["logits"], alone[name]["logits"], rtol=1e-3, atol=1e-3)
            assert [t.shape for t in tensors(found["state"])] == shapes
            assert_alike(go_on(config, found["state"]), expected[1:])
            if (way, name) in FROM_ONE:
                assert_alike(first[f"{way} {name} from one"], expected[1:])
    for way in WAYS:
        assert first[f"{way} wild"] == second[f"{way} wild"]
        assert "the loss is not finite at update 2" in first[f"{way} wild"]


# the processes


def talk(group: ProcessGroup, folder: Path) -> dict[Any, Any]:
    given = {
        "a": [torch.tensor(True), (torch.ones(3, 2).T, torch.zeros(0))],
        "b": "word",
        3: torch.tensor(2.5),
    }
    found: dict[Any, Any] = {"shared": group.broadcast(given if group.is_rank0 else None)}

    def fail(who: int) -> int:
        if group.rank == who:
            raise ValueError("no room")
        return group.rank

    for who in (0, 1):
        try:
            group.on_all_ranks(lambda who=who: fail(who))  # type: ignore[misc]
        except (ValueError, RuntimeError) as error:
            found[who] = f"{type(error).__name__}: {error}"
    with group.rank0_first():
        if group.is_rank0:
            time.sleep(0.3)
            (folder / "made").touch()
        found["made"] = (folder / "made").exists()
    found["rank"] = group.on_all_ranks(lambda: fail(2))
    distributed.PATIENCE_SECONDS = 0.5

    def apart() -> None:
        if group.rank == 1:
            raise ValueError("no room")
        dist.barrier()  # as a step waits for the others

    try:
        group.on_all_ranks(apart)
    except ProcessLost as error:
        found["lost"] = str(error)
        try:
            group.broadcast(1)
        except ProcessLost as again:
            found["after"] = str(again)
    torch.save(found, folder / f"{group.rank}.pt")
    os._exit(0)  # to meet once more is not possible


@pytest.mark.slow
def test_what_one_process_says_and_how_it_fails_reaches_the_other(tmp_path: Path) -> None:
    first, second = both(talk, tmp_path, tmp_path)
    assert second["shared"]["a"][0].item() is True
    assert torch.equal(second["shared"]["a"][1][0], torch.ones(2, 3))
    assert [second["shared"]["b"], second["shared"][3].item()] == ["word", 2.5]
    assert [first[0], second[0]] == [
        "ValueError: no room",
        "RuntimeError: rank 0 failed: ValueError: no room",
    ]
    assert [second[1], first[1]] == [
        "ValueError: no room",
        "RuntimeError: rank 1 failed: ValueError: no room",
    ]
    assert first["made"]
    assert second["made"]
    assert [first["rank"], second["rank"]] == [0, 1]
    assert second["lost"] == "rank 1 cannot go on with the others: ValueError: no room"
    assert "rank 0 cannot go on with the others" in first["lost"]
    assert "out of step" in first["after"]


# the command


def start(*words: str, parallel: str) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*torchrun, "-m", "tiny_reading", *words, "--parallel", parallel],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def stopped(step: Any) -> Any:
    def once(work: LanguageModelWork) -> list[Row]:
        signal.raise_signal(signal.SIGTERM)
        found: list[Row] = step(work)
        return found

    return once


@pytest.mark.slow
def test_a_run_goes_on_from_one_process_to_two_and_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "tiny-reading", "--steps", "60", "--eval-every", "3", "--out"]
    path = Path("broken/tiny-reading-demo/seed-0")
    with monkeypatch.context() as patched:
        patched.setattr(LanguageModelWork, "step", stopped(LanguageModelWork.step))
        assert main([*words, "broken"]) == 75
    assert len(rows.read("broken")) == 1
    process = start(*words, "broken", parallel="fsdp")
    try:
        while not (path / "rows.jsonl").exists() or (path / "rows.jsonl").read_text().count("\n") < 3:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    finally:
        process.kill()
    assert out.count("2 processes (fsdp)") == 1, "one process prints"
    assert out.count("seed-0: stopped by SIGTERM") == 1
    assert "× 2 processes): from here on, rows may differ" in " ".join(out.split())
    assert "nap run:" not in err
    assert process.returncode == 1  # torchrun's own
    before = len(rows.read("broken"))
    assert 3 <= before < 20
    assert main([*words, "broken"]) == 0
    assert "processes → cpu" in capsys.readouterr().out.replace("\n", " "), "the change is noted"
    assert main([*words, "whole"]) == 0
    found, expected = (
        [{k: v for k, v in row.items() if k != "commit"} for row in rows.read(folder)]
        for folder in ("broken", "whole")
    )
    assert_alike(found, expected)


def test_runs_for_one_process_are_refused_under_torchrun_by_the_first_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = []
    for rank, code in (("0", 2), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert main(["run", "tiny"]) == code
        said.append(capsys.readouterr())
    assert "tiny: each of its runs is for one process, and torchrun started 2" in said[0].err
    assert "nap run --shard 1/2" in said[0].err
    assert said[1].out + said[1].err == ""
    assert not Path("results").exists()


def test_batches_that_processes_cannot_share_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_group", ProcessGroup(distributed.Rank(0, 3)))
    with pytest.raises(
        ValueError, match="batch_size is 8 in 2 gradient accumulation steps, which 3 processes cannot"
    ):
        work()
