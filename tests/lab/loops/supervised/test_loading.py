"""Batches of images from files: whoever makes them, in whatever order they are needed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nap.lab.datasets.image_files import load_image_folders
from nap.lab.datasets.streams import batches
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.supervised import loading, workers
from nap.lab.loops.supervised.imagenet_run import ImageNetWork
from nap.lab.loops.supervised.loading import (
    Batch,
    EvalBatches,
    RunBatches,
    TrainBatches,
    loader,
    stream_batches,
    workers_for,
)
from nap.lab.loops.supervised.random_resized_crop import ResizedCrops
from nap.lab.loops.supervised.settings import BASELINE, ImageNetConfig
from nap.lab.loops.supervised.workers import WorkerLost, check_room, worker_errors_explained
from nap.lab.machine import SIDE_BY_SIDE
from small_images import write_folders
from two_processes import CPU

A_PASS = 3  # of 30 images in batches of 8


@pytest.fixture
def images(tmp_path: Path) -> str:
    return str(write_folders(tmp_path / "images"))


def item(dataset: Any, number: Any) -> Batch:
    found: Batch | str = dataset[number]
    assert not isinstance(found, str)
    return found


def test_a_batch_depends_on_its_number_alone_whoever_makes_it(images: str) -> None:
    """Two worker processes, none, two processes with a share each; signals do not reach the workers."""
    train, _ = load_image_folders(Path(images))
    crops = ResizedCrops(3, size=8, resize=8, min_area=0.2, flip=True)
    learnt = TrainBatches(train, crops, 8)
    expected = [item(learnt, step) for step in range(2, 9)]
    found = loader(learnt, range(2, 9), workers=2, pin=False)
    stream = stream_batches(found, CPU)
    first = next(stream)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for process in workers:
        assert process.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(process.pid, number)
    by_workers = [first, *stream]
    alone = list(loader(learnt, range(2, 9), workers=0, pin=False))
    halves = [TrainBatches(train, crops, 8, rank=rank, world_size=2) for rank in (0, 1)]
    shared = [
        tuple(torch.cat(parts) for parts in zip(*(item(half, step) for half in halves), strict=True))
        for step in range(2, 9)
    ]
    for others in (by_workers, alone, shared):
        assert len(others) == len(expected)
        for one, other in zip(expected, others, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for epoch in (1, 2):
        numbers = batches(3, 1, epoch, count=30, batch_size=8).flatten()
        labels = torch.cat([item(learnt, A_PASS * epoch + k)[1] for k in range(A_PASS)])
        assert labels.tolist() == train.labels[numbers].tolist()
    again = learnt.crops.sample(train, 5, 1)
    assert again.tobytes() == crops.sample(train, 5, 1).tobytes()
    assert again.tobytes() != crops.sample(train, 5, 2).tobytes()
    assert again.tobytes() != replace(crops, seed=4).sample(train, 5, 1).tobytes()


def test_each_test_image_is_seen_once_by_one_process(images: str) -> None:
    _, val = load_image_folders(Path(images))
    crops = ResizedCrops(0, size=8, resize=8, min_area=1.0, flip=False)
    whole = torch.cat([item(EvalBatches(val, crops, 5), k)[0] for k in range(3)])
    parts = []
    for rank in (0, 1):
        eval_batches = EvalBatches(val, crops, 5, rank=rank, world_size=2)
        parts.append(torch.cat([item(eval_batches, k)[0] for k in range(len(eval_batches))]))
    assert len(whole) == 12
    assert torch.equal(torch.stack(parts, 1).flatten(0, 1), whole)


def test_batches_to_be_judged_on_follow_each_interval_and_the_last_update(images: str) -> None:
    train, val = load_image_folders(Path(images))
    crops = ResizedCrops(0, size=8, resize=8, min_area=1.0, flip=False)
    needed = RunBatches(TrainBatches(train, crops, 8), EvalBatches(val, crops, 8))
    eval_batches = [("eval", 0), ("eval", 1)]  # 12 images
    learnt = [("train", update) for update in range(5)]
    assert list(needed.order(0, 5, eval_every=2)) == [
        *learnt[:2],
        *eval_batches,
        *learnt[2:4],
        *eval_batches,
        learnt[4],
        *eval_batches,
    ]
    assert list(needed.order(2, 4, eval_every=2)) == [*learnt[2:4], *eval_batches]
    assert not list(needed.order(4, 4, eval_every=2))
    for kind, dataset in (("train", needed.train), ("eval", needed.eval)):
        found, expected = item(needed, (kind, 1)), item(dataset, 1)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


# how many workers, and their room


def test_those_who_share_a_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAP_WORKERS", "LOCAL_WORLD_SIZE", SIDE_BY_SIDE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(loading, "cores", lambda: 64)
    gpu = torch.device("cuda")
    assert (workers_for(gpu), workers_for(CPU)) == (32, 0)
    monkeypatch.setenv(SIDE_BY_SIDE, "8")  # a sweep
    assert (workers_for(gpu), workers_for(CPU)) == (8, 0)
    monkeypatch.setenv(SIDE_BY_SIDE, "100")
    assert workers_for(gpu) == 1
    monkeypatch.delenv(SIDE_BY_SIDE)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # torchrun
    assert workers_for(gpu) == 16
    monkeypatch.setenv("NAP_WORKERS", "5")
    assert (workers_for(gpu), workers_for(CPU)) == (5, 5)


def fake_shared_memory(monkeypatch: pytest.MonkeyPatch, *, total: int, used: int = 0) -> None:
    there = SimpleNamespace(total=total, used=used, free=total - used)
    monkeypatch.setattr(workers, "SHARED", Path("/"))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: there)


def test_a_run_does_not_begin_without_room_for_its_batches(
    images: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ready for each worker and two in the run's hands; at paper scale in a container, too many."""
    settings = ImageNetConfig(
        images=images, batch_size=20, image_size=100, resize=100, width=4, epochs=1, warmup_epochs=0.0
    )
    a_batch = 20 * (100 * 100 * 3 + 8)

    def start(workers: int) -> ImageNetWork:
        return ImageNetWork(NetworkRun(BASELINE, settings, 0, {}), CPU, workers=workers)

    fake_shared_memory(monkeypatch, total=6 * a_batch)
    start(2)
    fake_shared_memory(monkeypatch, total=6 * a_batch, used=1)
    with pytest.raises(
        ValueError, match=r"need 3\.6 MB .* there are 3\.6 MB; .*--shm-size 4m.*NAP_WORKERS=1$"
    ):
        start(2)
    start(0)
    fake_shared_memory(monkeypatch, total=64 * 2**20)
    at_paper = 256 * (224 * 224 * 3 + 8)
    with pytest.raises(ValueError, match=r"need 694 MB .* are 67 MB; .* NAP_WORKERS=0, which needs none"):
        check_room(8, at_paper)
    fake_shared_memory(monkeypatch, total=0)  # without a limit
    check_room(8, at_paper)


def test_runs_that_share_a_machine_have_their_parts_of_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIDE_BY_SIDE, "2")
    fake_shared_memory(monkeypatch, total=80, used=40)  # the other one has its part already
    check_room(1, 10)
    fake_shared_memory(monkeypatch, total=79)
    with pytest.raises(ValueError, match=r"need 4e-05 MB .* are 3\.9e-05 MB"):
        check_room(1, 10)


# what may go wrong: errors, deaths, losses


class Failing:
    """Batches of which one cannot be made."""

    def __getitem__(self, number: int) -> Batch:
        if number == 2:
            raise RuntimeError("a mistake")
        return torch.ones(1), torch.ones(1)


def test_an_error_in_a_worker_leaves_none_behind() -> None:
    """Nor one that a process would wait for when it ends."""
    gc.disable()
    try:
        with worker_errors_explained(), pytest.raises(RuntimeError, match="a mistake"):
            list(stream_batches(loader(Failing(), range(9), workers=1, pin=False), CPU))
        assert not multiprocessing.active_children()
    finally:
        gc.enable()


class Deadly(TrainBatches):
    """The worker that makes batch 1 is ended by the system."""

    def __getitem__(self, step: int) -> Batch | str:
        if step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(step)


class Cramped(TrainBatches):
    """There is no room in shared memory for batch 1."""

    def __getitem__(self, step: int) -> Batch | str:
        if step == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        return super().__getitem__(step)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            Deadly,
            r"was ended \(DataLoader worker .*\), perhaps for want of memory; set fewer NAP_WORKERS, and the",
        ),
        (
            Cramped,
            r"no room in /dev/shm \(.*\); make room .* --shm-size\), or set fewer NAP_WORKERS, .*; the",
        ),
    ],
    ids=["killed", "no room"],
)
def test_the_loss_of_a_worker_or_batch_ends_the_run_and_says_the_way_out(
    images: str, kind: type[TrainBatches], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "TIMEOUT_SECONDS", 30.0)
    settings = ImageNetConfig(
        images=images,
        blocks=(1,),
        width=4,
        small_stem=True,
        batch_size=8,
        image_size=8,
        resize=8,
        warmup_epochs=0.0,
    )
    run = ImageNetWork(NetworkRun(BASELINE, settings, 0, {}), CPU, workers=1)
    learnt = run.batches.train
    run.batches.train = kind(learnt.images, learnt.crops, learnt.batch_size)
    with pytest.raises(WorkerLost, match=message + " same command goes on where it was saved last"):
        run.step()


def test_a_batch_that_never_comes_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "TIMEOUT_SECONDS", 0.01)  # no worker has begun by then
    stream = stream_batches(loader(Failing(), range(2), workers=1, pin=False), CPU)
    with (
        pytest.raises(WorkerLost, match=r"lost on its way.*the same command goes on"),
        worker_errors_explained(),
    ):
        next(stream)


def test_other_errors_keep_their_words() -> None:
    with pytest.raises(RuntimeError, match=r"^out of resource: shared memory$"), worker_errors_explained():
        raise RuntimeError("out of resource: shared memory")


def test_a_bus_error_is_for_want_of_room() -> None:
    said = "DataLoader worker (pid 3) is killed by signal: Bus error. It may be out of shared memory."
    with pytest.raises(WorkerLost, match="found no room in /dev/shm"), worker_errors_explained():
        raise RuntimeError(said)
