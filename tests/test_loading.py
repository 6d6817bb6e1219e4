"""Batches of images from files: whoever makes them, in whatever order they are needed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from crews import CPU
from nap.lab.data.picture_folders import in_folders
from nap.lab.data.streams import batches
from nap.lab.vision.loading import Batch, Judged, Learnt, Needed, batches_of, loader
from nap.lab.vision.looks import Looks
from small_pictures import write_folders

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
    train, _ = in_folders(Path(images))
    looks = Looks(3, size=8, resize=8, smallest=0.2, flip=True)
    learnt = Learnt(train, looks, 8)
    expected = [item(learnt, step) for step in range(2, 9)]
    found = loader(learnt, range(2, 9), workers=2, pin=False)
    stream = batches_of(found, CPU)
    first = next(stream)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for process in workers:
        assert process.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(process.pid, number)
    by_workers = [first, *stream]
    alone = list(loader(learnt, range(2, 9), workers=0, pin=False))
    halves = [Learnt(train, looks, 8, rank=rank, size=2) for rank in (0, 1)]
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
    again = learnt.looks.drawn(train, 5, 1)
    assert again.tobytes() == looks.drawn(train, 5, 1).tobytes()
    assert again.tobytes() != looks.drawn(train, 5, 2).tobytes()
    assert again.tobytes() != replace(looks, seed=4).drawn(train, 5, 1).tobytes()


def test_each_test_image_is_seen_once_by_one_process(images: str) -> None:
    _, val = in_folders(Path(images))
    looks = Looks(0, size=8, resize=8, smallest=1.0, flip=False)
    whole = torch.cat([item(Judged(val, looks, 5), k)[0] for k in range(3)])
    parts = []
    for rank in (0, 1):
        judged = Judged(val, looks, 5, rank=rank, size=2)
        parts.append(torch.cat([item(judged, k)[0] for k in range(len(judged))]))
    assert len(whole) == 12
    assert torch.equal(torch.stack(parts, 1).flatten(0, 1), whole)


def test_batches_to_be_judged_on_follow_each_interval_and_the_last_update(images: str) -> None:
    train, val = in_folders(Path(images))
    looks = Looks(0, size=8, resize=8, smallest=1.0, flip=False)
    needed = Needed(Learnt(train, looks, 8), Judged(val, looks, 8))
    judged = [("judge", 0), ("judge", 1)]  # 12 images
    learnt = [("learn", update) for update in range(5)]
    assert list(needed.order(0, 5, every=2)) == [
        *learnt[:2],
        *judged,
        *learnt[2:4],
        *judged,
        learnt[4],
        *judged,
    ]
    assert list(needed.order(2, 4, every=2)) == [*learnt[2:4], *judged]
    assert not list(needed.order(4, 4, every=2))
    for kind, dataset in (("learn", needed.learnt), ("judge", needed.judged)):
        found, expected = item(needed, (kind, 1)), item(dataset, 1)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
