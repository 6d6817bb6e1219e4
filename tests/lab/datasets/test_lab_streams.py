"""Streams of tasks: their distributions, and that every draw depends on its key and on nothing else."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from nap.lab.datasets.images import Images
from nap.lab.datasets.streams import Kind, Purpose, Stream, batches, generator, reorder

KINDS: tuple[Kind, ...] = ("random labels", "permuted labels", "permuted pixels")
NUMBERS = st.integers(0, 2**32 - 1)
TASKS = st.integers(1, 2**32 - 1)

# drawn once with numpy 2.4
RANDOM_LABELS = [9, 6, 0, 2, 5, 4, 7, 3]
PERMUTED_LABELS = [7, 4, 6, 9, 5, 2, 3, 0]
PIXEL_ORDER = [6, 9, 12, 3, 15, 5, 7, 1, 8, 11, 4, 13, 0, 2, 10, 14]
BATCHES = [[2, 6, 8, 1], [7, 0, 4, 5]]


def some_images(count: int, classes: int = 10, side: int = 4) -> Images:
    draws = np.random.default_rng(0)
    pixels = draws.integers(256, size=(count, 3, side, side), dtype=np.uint8)
    labels = np.arange(count) % classes
    return Images("some", torch.from_numpy(pixels), torch.from_numpy(labels), classes)


def chi_square(counts: Tensor) -> float:
    """Pearson's statistic against equal counts."""
    expected = counts.sum() / counts.numel()
    return float(((counts - expected) ** 2 / expected).sum())


def joint_counts(first: Tensor, second: Tensor, classes: int = 10) -> Tensor:
    return torch.bincount(first * classes + second, minlength=classes**2).double()


# ---- distributions (fixed seeds: each number below is one draw, far inside of its 99.99 % range) --------


def test_random_labels_are_uniform() -> None:
    labels = Stream("random labels").labels(range(4), 1, some_images(50_000))
    assert labels.shape == (4, 50_000)
    for row in labels:
        assert chi_square(torch.bincount(row, minlength=10).double()) < 33.7  # 9 degrees of freedom


def test_random_labels_are_independent_of_class_task_and_seed() -> None:
    images = some_images(50_000)
    stream = Stream("random labels")
    draws = [images.labels, *(stream.labels(seed, task, images) for seed in (0, 1) for task in (1, 2, 3))]
    for first, second in combinations(draws, 2):
        assert chi_square(joint_counts(first, second)) < 160  # 99 degrees of freedom


def test_permuted_labels_rename_the_classes() -> None:
    images = some_images(1000)
    for seed in range(5):
        labels = Stream("permuted labels").labels(seed, 1, images)
        names = labels[:10]  # images 0 to 9 are of classes 0 to 9
        assert sorted(names.tolist()) == list(range(10))
        assert torch.equal(labels, names[images.labels])


def test_permuted_labels_give_each_class_every_name_equally_often() -> None:
    images = some_images(10)
    names = torch.cat([Stream("permuted labels").labels(range(500), task, images) for task in range(1, 11)])
    for column in names.unbind(1):
        assert chi_square(torch.bincount(column, minlength=10).double()) < 33.7


def test_permuted_pixels_keep_the_labels() -> None:
    images = some_images(20)
    assert torch.equal(Stream("permuted pixels").labels(0, 1, images), images.labels)
    assert torch.equal(Stream("permuted pixels").labels([0, 7], 2, images), images.labels.expand(2, -1))


def test_labels_are_a_copy() -> None:
    images = some_images(20)
    before = images.labels.clone()
    for kind in KINDS:
        Stream(kind).labels(0, 1, images).zero_()
    assert torch.equal(images.labels, before)


def test_batches_of_an_epoch_put_every_example_anywhere_equally_often() -> None:
    first = torch.stack([batches(seed, 1, 0, count=10, batch_size=5)[0, 0] for seed in range(5000)])
    assert chi_square(torch.bincount(first, minlength=10).double()) < 33.7


# ---- permutations ---------------------------------------------------------------------------------------


@given(NUMBERS, TASKS, st.integers(1, 8))
def test_a_pixel_order_is_a_permutation(seed: int, task: int, side: int) -> None:
    order = Stream("permuted pixels").pixel_order(seed, task, some_images(1, side=side))
    assert order is not None
    assert sorted(order.tolist()) == list(range(side * side))


def test_only_permuted_pixels_have_an_order() -> None:
    for kind in KINDS[:2]:
        assert Stream(kind).pixel_order(0, 1, some_images(1)) is None


def test_reordered_pixels_are_the_same_pixels_elsewhere() -> None:
    images = some_images(5)
    order = Stream("permuted pixels").pixel_order(3, 1, images)
    assert order is not None
    moved = reorder(images.pixels, order)
    assert torch.equal(moved.flatten(2), images.pixels.flatten(2)[:, :, order])
    assert torch.equal(reorder(moved, order.argsort()), images.pixels)
    assert not torch.equal(moved, images.pixels)


def test_members_of_a_population_reorder_their_own_way() -> None:
    images = some_images(6)
    orders = Stream("permuted pixels").pixel_order([4, 5], 1, images)
    assert orders is not None
    stacked = images.pixels.view(2, 3, *images.pixels.shape[1:])
    together = torch.vmap(reorder)(stacked, orders)
    assert torch.equal(together, torch.stack([reorder(stacked[k], orders[k]) for k in range(2)]))


@given(NUMBERS, TASKS, NUMBERS, st.integers(1, 200), st.data())
def test_an_epoch_draws_without_replacement(
    seed: int, task: int, epoch: int, count: int, data: st.DataObject
) -> None:
    batch_size = data.draw(st.integers(1, count))
    found = batches(seed, task, epoch, count=count, batch_size=batch_size)
    assert found.dtype == torch.int64
    assert found.shape == (count // batch_size, batch_size)
    assert len(found.unique()) == found.numel()
    assert int(found.min()) >= 0
    assert int(found.max()) < count


# ---- a pure function of the key -------------------------------------------------------------------------


def every_draw(seed: int | list[int], task: int, epoch: int = 0) -> dict[str, Tensor]:
    images = some_images(64, side=8)
    order = Stream("permuted pixels").pixel_order(seed, task, images)
    assert order is not None
    return {
        "random labels": Stream("random labels").labels(seed, task, images),
        "permuted labels": Stream("permuted labels").labels(seed, task, images),
        "pixel order": order,
        "batches": batches(seed, task, epoch, count=64, batch_size=10),
    }


@given(st.lists(NUMBERS, min_size=1, max_size=5), TASKS, NUMBERS)
def test_a_member_draws_what_its_single_run_draws(seeds: list[int], task: int, epoch: int) -> None:
    together = every_draw(seeds, task, epoch)
    for k, seed in enumerate(seeds):
        for name, alone in every_draw(seed, task, epoch).items():
            assert torch.equal(together[name][k], alone), name


@given(NUMBERS, TASKS, NUMBERS, NUMBERS, TASKS, NUMBERS)
def test_seed_task_and_epoch_each_change_the_draws(
    seed: int, task: int, epoch: int, seed2: int, task2: int, epoch2: int
) -> None:
    assume(seed != seed2 and task != task2 and epoch != epoch2)
    here = every_draw(seed, task, epoch)
    for other in (every_draw(seed2, task, epoch), every_draw(seed, task2, epoch)):
        for name in ("random labels", "pixel order", "batches"):  # ten classes may well come out the same
            assert not torch.equal(here[name], other[name]), name
    assert not torch.equal(here["batches"], every_draw(seed, task, epoch2)["batches"])


def test_neighbouring_keys_do_not_collide() -> None:
    drawn = {
        tuple(generator(seed, purpose, task, epoch).integers(2**62, size=2).tolist())
        for seed in range(5)
        for purpose in range(5)
        for task in range(5)
        for epoch in range(5)
    }
    assert len(drawn) == 5**4


def test_global_state_plays_no_part() -> None:
    before = every_draw(3, 2, 1)
    np.random.seed(123)
    torch.manual_seed(123)
    after = every_draw(3, 2, 1)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_seeds_may_come_in_any_sequence() -> None:
    expected = batches([2, 3], 1, 0, count=9, batch_size=3)
    assert torch.equal(batches(range(2, 4), 1, 0, count=9, batch_size=3), expected)
    assert torch.equal(batches((2, 3), 1, 0, count=9, batch_size=3), expected)
    assert batches([], 1, 0, count=9, batch_size=3).shape == (0, 3, 3)


def test_the_draws_are_those_of_stored_results() -> None:
    """If numpy ever changes its streams, results stop being comparable: this is where it shows."""
    images = some_images(8)
    assert Stream("random labels").labels(1, 2, images).tolist() == RANDOM_LABELS
    assert Stream("permuted labels").labels(1, 2, images).tolist() == PERMUTED_LABELS
    order = Stream("permuted pixels").pixel_order(1, 2, images)
    assert order is not None
    assert order.tolist() == PIXEL_ORDER
    assert batches(1, 2, 3, count=9, batch_size=4).tolist() == BATCHES
    assert [purpose.value for purpose in Purpose] == [1, 2, 3, 4]


# ---- refusals and speed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [0, -1])
def test_tasks_count_from_one(task: int) -> None:
    images = some_images(4)
    for kind in KINDS:
        with pytest.raises(ValueError, match=f"task is {task}, but tasks count from 1"):
            Stream(kind).labels(0, task, images)
        with pytest.raises(ValueError, match="tasks count from 1"):
            Stream(kind).pixel_order(0, task, images)
    with pytest.raises(ValueError, match="tasks count from 1"):
        batches(0, task, 0, count=4, batch_size=2)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_key_out_of_range_is_named(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed is {seed}"):
        generator(seed, 1, 1)
    with pytest.raises(ValueError, match=f"epoch is {seed}"):
        batches(0, 1, seed, count=4, batch_size=2)


def test_a_seed_must_be_whole() -> None:
    with pytest.raises(TypeError, match="integer"):
        generator(1.5, 1, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_size", [0, -1, 11])
def test_a_batch_that_cannot_be_filled(batch_size: int) -> None:
    with pytest.raises(ValueError, match=f"batch_size is {batch_size}, but 10 examples"):
        batches(0, 1, 0, count=10, batch_size=batch_size)


def test_an_unknown_stream_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no stream 'shuffled'; choose from random labels, permuted labels"):
        Stream("shuffled")  # type: ignore[arg-type]
