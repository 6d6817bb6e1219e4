"""Workers on this machine, one in each slot: a core, a GPU or a share of a GPU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from nap.lab.launch import worker_process
from nap.lab.launch.engine import Exit
from nap.lab.launch.jobs import Job
from nap.lab.launch.options import SweepOptions
from nap.lab.machine import SIDE_BY_SIDE, cores

GPU = "CUDA_VISIBLE_DEVICES"
Slot = Mapping[str, str]  # environment variables of a worker in it


class Pool:
    """Runs jobs in slots."""

    def __init__(self, slots: Sequence[Slot]):
        self._free, self.workers = list(slots), len(slots)
        self.description = describe(slots)

    def submit(self, job: Job) -> PoolWorker:
        slot = self._free.pop(0)
        environment = {**job.environment, **slot, SIDE_BY_SIDE: str(self.workers)}
        log = job.path / worker_process.LOG_NAME
        try:
            worker = worker_process.start(job.command, where=job.where, log=log, environment=environment)
        except OSError:
            self.free(slot)
            raise
        return PoolWorker(self, slot, worker)

    def free(self, slot: Slot) -> None:
        self._free.append(slot)


class PoolWorker:
    """A worker in its slot."""

    def __init__(self, pool: Pool, slot: Slot, worker: subprocess.Popen[bytes]):
        self._pool, self._slot, self.worker = pool, slot, worker

    def poll(self) -> Exit | None:
        code = self.worker.poll()
        if code is None:
            return None
        worker_process.release(self.worker)
        self._pool.free(self._slot)
        return Exit(code)

    def stop(self) -> None:
        worker_process.release(self.worker)

    def kill(self) -> None:
        worker_process.release(self.worker)
        with contextlib.suppress(ProcessLookupError):  # it has exited
            os.killpg(self.worker.pid, signal.SIGKILL)  # with its emulators and data loaders
        self.worker.wait()


def slots_here(options: SweepOptions) -> list[Slot]:
    """The slots of this machine."""
    visible: list[str] = []
    if options.device != "cpu" and torch.cuda.is_available():
        named = os.environ.get(GPU)
        visible = named.split(",") if named else [str(n) for n in range(torch.cuda.device_count())]
    elif options.device == "cuda":
        raise ValueError("--device cuda: torch sees no CUDA device here; take --device cpu")
    return slots(options, cores=cores(), visible=visible)


def slots(options: SweepOptions, *, cores: int, visible: Sequence[str]) -> list[Slot]:
    """A slot for each share of a GPU; without GPUs, a slot for as many cores as a run has threads.

    >>> slots(SweepOptions(threads=2), cores=5, visible=[])
    [{}, {}]
    >>> [slot[GPU] for slot in slots(SweepOptions(per_gpu=2, gpus=(0, 2)), cores=5, visible=["3", "5", "7"])]
    ['3', '7', '3', '7']
    """
    if not visible:
        if options.gpus or options.per_gpu != 1:
            raise ValueError("--gpus and --per-gpu: torch sees no GPU here, or --device cpu rules them out")
        return [{}] * (options.workers or max(1, cores // (options.threads or 1)))
    for number in options.gpus:
        if not 0 <= number < len(visible):
            raise ValueError(f"--gpus {number}: there are {len(visible)} GPUs here, counted from 0")
    chosen = [visible[number] for number in options.gpus or range(len(visible))]
    shares: list[Slot] = [{GPU: name} for _ in range(options.per_gpu) for name in chosen]
    if options.workers > len(shares):
        raise ValueError(
            f"--workers {options.workers}: {len(chosen)} GPUs with {options.per_gpu} runs each "
            f"hold {len(shares)}; let more runs share a GPU with --per-gpu, or take --device cpu"
        )
    return shares[: options.workers or None]


def describe(slots: Sequence[Slot]) -> str:
    """
    >>> describe([{}, {}]), describe([{GPU: "0"}, {GPU: "1"}, {GPU: "0"}])
    ('2 workers here, on CPU', '3 workers here, on 2 GPUs')
    """
    gpus = Counter(slot[GPU] for slot in slots if GPU in slot)
    place = f"{len(gpus)} GPU{'s' * (len(gpus) > 1)}" if gpus else "CPU"
    return f"{len(slots)} worker{'s' * (len(slots) > 1)} here, on {place}"
