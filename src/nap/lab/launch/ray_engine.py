"""A Ray cluster: each job is a task, and Ray finds it a node with the cores and GPUs that it needs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, TaskCancelledError

from nap.lab.launch import worker_process
from nap.lab.launch.engine import Exit, check_ray_address, error_line
from nap.lab.launch.jobs import Job
from nap.lab.launch.options import SweepOptions
from nap.lab.machine import SIDE_BY_SIDE


class Cluster:
    """Tasks on a Ray cluster. Ray retries none of them: the driver does."""

    def __init__(self, options: SweepOptions):
        resources = ray.cluster_resources()
        gpus = resources.get("GPU", 0.0)
        if options.device == "cuda" and not gpus:
            raise ValueError("--device cuda: this Ray cluster has no GPU; take --device cpu")
        with_gpu = options.device != "cpu" and gpus > 0
        self.workers, cores = options.workers, options.threads or 1
        share = 1 / options.per_gpu if with_gpu else 0.0
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        check_room(nodes, cores, share)
        most = side_by_side(nodes, cores, share)
        self._shared = {SIDE_BY_SIDE: str(min(most, options.workers or most))}
        self.description = (
            f"Ray ({resources.get('CPU', 0):g} cores, {gpus:g} GPUs "
            f"on {len(nodes)} node{'s' * (len(nodes) > 1)})"
        )
        self._task: Any = ray.remote(num_cpus=cores, num_gpus=share, max_retries=0)(worker_process.run_worker)

    def submit(self, job: Job) -> RayTask:
        log = job.path / worker_process.LOG_NAME
        task = self._task.options(name=f"nap {job.label}")
        result = task.remote(job.command, job.where, log, {**job.environment, **self._shared})
        return RayTask(result, job.path)


class RayTask:
    """A task that waits or runs."""

    def __init__(self, result: Any, folder: Path):
        self._result, self._folder = result, folder

    def poll(self) -> Exit | None:
        ready, _ = ray.wait([self._result], timeout=0)
        if not ready:
            return None
        try:
            return Exit(ray.get(self._result))
        except TaskCancelledError:
            return Exit(None, "cancelled")
        except RayError as error:  # its process or its node is gone
            return Exit(None, f"{type(error).__name__}: {error_line(str(error))}")

    def stop(self) -> None:
        worker_process.request_stop(self._folder)  # Ray may not deliver a cancellation to a running task
        ray.cancel(self._result)

    def kill(self) -> None:
        ray.cancel(self._result, force=True)


def check_room(nodes: Sequence[Mapping[str, float]], cores: int, gpus: float) -> None:
    """Refuse what no node can hold: Ray would silently wait for ever."""
    most = max((node.get("CPU", 0.0) for node in nodes if node.get("GPU", 0.0) >= gpus), default=0.0)
    if most < cores:
        raise ValueError(
            f"--threads {cores}: no node of this Ray cluster has so many cores{' and a GPU' * (gpus > 0)}; "
            f"the most is {most:g}; take fewer threads{', or --device cpu' * (gpus > 0)}"
        )


def side_by_side(nodes: Sequence[Mapping[str, float]], cores: int, gpus: float) -> int:
    """How many tasks run at a time on the node with most of them.

    >>> side_by_side([{"CPU": 64.0}, {"CPU": 64.0, "GPU": 8.0}, {"CPU": 4.0, "GPU": 8.0}], 1, 0.5)
    16
    >>> side_by_side([{"CPU": 64.0, "GPU": 1.0}], 1, 1 / 5)  # though 1.0 // 0.2 is 4
    5
    """
    by_cores = [node.get("CPU", 0.0) // cores for node in nodes]
    by_gpus = [node.get("GPU", 0.0) / gpus + 1e-9 if gpus else float("inf") for node in nodes]
    return int(max(map(min, by_cores, by_gpus), default=1))


@contextlib.contextmanager
def cluster(options: SweepOptions) -> Iterator[Cluster]:
    """The cluster at `--address`, until the end of the block."""
    try:
        check_ray_address(options.address)
        ray.init(address=options.address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, SystemExit) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"no Ray cluster at {options.address} ({reason}); start one with `ray start --head`, name "
            f"another with --address, set RAY_AUTH_MODE=token if it asks for one, or take --engine local"
        ) from error
    try:
        yield Cluster(options)
    finally:
        ray.shutdown()
