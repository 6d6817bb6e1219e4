"""`nap sweep` on a real local Ray cluster, and on submitit's local executor: killed, and nothing is lost."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from nap.lab.experiments import MODULES
from nap.lab.launch.options import SweepOptions
from nap.lab.launch.worker_process import LOG_NAME
from sweep_jobs import asked
from sweep_slurm import small_slurm
from sweep_trials import (
    ENVIRONMENT,
    advanced,
    assert_same,
    kill_at_random,
    kill_at_work,
    parent,
    sessions,
    sweeping,
    undisturbed,
    until,
    workers,
)

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
RUNS, STEPS = 2, ["--steps", "40"]
SIZE = ["--runs", str(RUNS), *STEPS, "--seconds-per-step", "0.05"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    until(lambda: not workers("results"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), *STEPS)


@pytest.fixture(scope="module")
def ray_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of this machine alone, with two cores, that ends with its tests."""
    place = tempfile.mkdtemp(prefix="nap-ray-", dir="/tmp")  # short, since sockets lie in it
    words = (
        "start --head --block --port 0 --num-cpus 2 --num-gpus 0 --include-dashboard false "
        f"--object-store-memory 80000000 --disable-usage-stats --temp-dir {place}"
    )
    log = tmp_path_factory.mktemp("ray") / "log"
    with log.open("w") as out:
        head = subprocess.Popen(
            [Path(sys.executable).with_name("ray"), *words.split()],
            env=ENVIRONMENT,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield until(lambda: re.search(r"--address='([\d.:]+)'", log.read_text()))[1]
    finally:
        head.send_signal(signal.SIGTERM)
        head.wait()
        shutil.rmtree(place)


def test_ray_with_workers_tasks_and_the_driver_killed(expected: Path, ray_address: str) -> None:
    words = [*SIZE, "--engine", "ray", "--address", ray_address, "--retries", "30"]
    slowly, more_so = (["--seconds-per-step", seconds] for seconds in ("0.3", "0.6"))  # Ray takes its time
    draws = random.Random(1)
    with sweeping(*words, *slowly) as driver:
        kill_at_random("results", driver, draws, kills=1)  # the run's own process
        kill_at_random("results", driver, draws, kills=1, victim=parent)  # Ray's, which started it
        until(lambda: advanced("results"), driver)
        driver.kill()
    until(lambda: not workers("results"))  # Ray ends the tasks of a driver that is gone
    with sweeping(*words, *more_so, RAY_LOSES_CANCELS="1") as driver:  # it may: then the folder says it
        until(lambda: advanced("results"), driver)
        driver.process.send_signal(signal.SIGTERM)
        assert "of 2 runs are left; the same command resumes them" in driver.said(code=75)
    until(lambda: not workers("results"))
    assert "stopped by SIGTERM" in [ends[-1] for ends in sessions("results").values()]
    with sweeping(*words) as driver:
        assert "on Ray (2 cores, 0 GPUs on 1 node)" in driver.said()
    assert_same("results", expected, runs=RUNS)


def test_ray_never_begins_what_still_waits_when_the_driver_is_stopped(ray_address: str) -> None:
    words = ["--runs", "3", *STEPS, "--seconds-per-step", "0.6", "--engine", "ray", "--address", ray_address]
    with sweeping(*words) as driver:
        until(lambda: len(advanced("results")) == 2, driver)
        driver.process.send_signal(signal.SIGTERM)
        assert "3 of 3 runs are left" in driver.said(code=75)
    assert len([*Path("results").rglob(LOG_NAME)]) == 2


def test_ray_refuses_what_no_node_can_hold(ray_address: str) -> None:
    with sweeping(*SIZE, "--engine", "ray", "--address", ray_address, "--threads", "3") as driver:
        assert "--threads 3: no node of this Ray cluster has so many cores; the most is 2" in driver.said(2)


def test_cores_and_gpus_must_be_on_the_same_node() -> None:
    from nap.lab.launch.ray_engine import check_room

    nodes = [{"CPU": 64.0}, {"CPU": 8.0, "GPU": 1.0}]
    check_room(nodes, 64, 0.0)
    check_room(nodes, 8, 0.5)
    with pytest.raises(ValueError, match=r"so many cores and a GPU; the most is 8; .* or --device cpu"):
        check_room(nodes, 9, 0.5)


@pytest.mark.parametrize(("workers", "count"), [(0, "16"), (3, "3")])
def test_a_task_of_ray_knows_with_how_many_it_shares_its_node(
    monkeypatch: pytest.MonkeyPatch, workers: int, count: str
) -> None:
    from nap.lab.launch import ray_engine
    from nap.lab.machine import SIDE_BY_SIDE

    monkeypatch.setitem(MODULES, "counting", "sweep_tiny")
    remote = mock.MagicMock()
    node = {"CPU": 64.0, "GPU": 8.0}
    monkeypatch.setattr(ray_engine.ray, "cluster_resources", lambda: node)
    monkeypatch.setattr(ray_engine.ray, "nodes", lambda: [{"Alive": True, "Resources": node}])
    monkeypatch.setattr(ray_engine.ray, "remote", lambda **_: lambda _: remote)
    ray_engine.Cluster(SweepOptions(per_gpu=2, workers=workers)).submit(asked("counting")[0])
    assert remote.options().remote.call_args.args[-1][SIDE_BY_SIDE] == count


def test_a_submission_that_slurm_refuses_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from nap.lab.launch.engine import EngineFull
    from nap.lab.launch.slurm_engine import Slurm

    commands = small_slurm(tmp_path / "slurm")
    refuse = "#!/bin/sh\necho 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2\nexit 1\n"
    (commands / "sbatch").write_text(refuse)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setitem(MODULES, "counting", "sweep_tiny")
    with pytest.raises(EngineFull, match="QOSMaxSubmitJobPerUserLimit"):
        Slurm(SweepOptions()).submit(asked("counting --runs 1")[0])


def test_submitit_with_workers_jobs_and_the_driver_killed(expected: Path) -> None:
    words = [*SIZE, *shlex.split("--engine slurm --slurm cluster=local --workers 2 --retries 30")]
    draws = random.Random(2)
    with sweeping(*words) as driver:
        kill_at_work("results", driver)  # the run's own process
        kill_at_random("results", driver, draws, kills=1, victim=parent)  # submitit's, which started it
        busy = until(lambda: advanced("results"), driver)[0]
        os.kill(busy, signal.SIGSTOP)  # so that it is still there when the next driver comes
        driver.kill()
    with sweeping(*words) as driver:
        until(lambda: f"in use by process {busy}" in driver.so_far(), driver)
        os.kill(busy, signal.SIGCONT)
        driver.said()
    assert_same("results", expected, runs=RUNS)
    assert any("killed" in ends for ends in sessions("results").values())


def test_slurm_from_submission_to_cancelled_jobs(expected: Path, tmp_path: Path) -> None:
    """SLURM's commands are small ones of our own: this tests what we and submitit say to them."""
    slurm = {"PATH": f"{small_slurm(tmp_path / 'slurm')}:{os.environ['PATH']}"}
    words = [*SIZE, *shlex.split("--engine slurm --slurm slurm_partition=tests timeout_min=30 --workers 2")]
    with sweeping(*words, **slurm) as driver:
        os.kill(until(lambda: advanced("results"), driver)[0], signal.SIGUSR2)  # its time is almost up
        until(lambda: "ended with exit code 75; to resume from its last" in driver.so_far(), driver)
        until(lambda: advanced("results"), driver)
        driver.process.send_signal(signal.SIGINT)
        driver.said(code=75)
    until(lambda: not workers("results"))
    assert "stopped by SIGTERM" in [ends[-1] for ends in sessions("results").values()]
    with sweeping(*words, **slurm) as driver:
        assert "on SLURM" in driver.said()
    assert_same("results", expected, runs=RUNS)
    script = (tmp_path / "slurm" / "1.script").read_text()
    for line in ("--partition=tests", "--time=30", "--cpus-per-task=1", "--job-name=nap"):
        assert f"#SBATCH {line}\n" in script
