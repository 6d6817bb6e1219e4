"""What only a GPU can show of image classifiers: an update recorded as a graph is the update."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu import needs_gpu
from nap.lab.loops.common.work import NetworkRun
from nap.lab.loops.supervised.cifar_run import CifarWork
from nap.lab.loops.supervised.imagenet_run import ImageNetWork
from nap.lab.loops.supervised.settings import BASELINE, NAP, NORM_ONLY, CifarConfig, ImageNetConfig, VisionArm
from nap.lab.loops.supervised.stacked import checked_kernel

pytestmark = needs_gpu
TINY = CifarConfig(
    data="digits",
    channels=(8, 0, 16, 0),
    hidden=(16,),
    batch_size=200,
    steps=21,
    eval_every=1,
    crop_padding=1,
    flip=False,
)  # seven updates a pass
VIEWED = ImageNetConfig(
    blocks=(1, 1), width=8, small_stem=True, image_size=16, resize=20, min_crop_area=0.5, batch_size=8,
    epochs=4, learning_rate=0.01, warmup_epochs=0.5, seeds=1,
)  # fmt: skip
CUDA = torch.device("cuda")


def work(arm: VisionArm, config: CifarConfig = TINY, **options: Any) -> CifarWork:
    return CifarWork(NetworkRun(arm, config, 0), CUDA, **options)


@pytest.fixture
def images(tmp_path: Path) -> str:
    pytest.importorskip("PIL")
    from small_images import write_folders

    return str(write_folders(tmp_path / "images"))


def viewing(images: str, arm: VisionArm, *, workers: int = 0, **options: Any) -> ImageNetWork:
    config = replace(VIEWED, images=images)
    return ImageNetWork(NetworkRun(arm, config, 0), CUDA, workers=workers, **options)


def finished(run: CifarWork | ImageNetWork) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while run.done < run.total:
        rows += run.step()
    return rows


def losses(run: CifarWork | ImageNetWork) -> list[float]:
    return [row["loss"] for row in finished(run)]


def weights(run: ImageNetWork) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.trainer.parameters])


@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP], ids=lambda arm: arm.name)
def test_a_graph_learns_what_plain_updates_learn(arm: VisionArm) -> None:
    plain = losses(work(arm, graph=False))
    assert losses(work(arm, graph=True)) == pytest.approx(plain, rel=2e-2)
    assert losses(work(arm, graph=True, compile_=True, stack=False)) == pytest.approx(plain, rel=5e-2)
    alone = work(arm, compile_=True)
    assert alone._stack is not None  # a stack of one
    assert losses(alone) == pytest.approx(plain, rel=5e-2)


def test_recording_leaves_no_trace() -> None:
    graph, plain = work(NAP, graph=True), work(NAP, graph=False)
    graph.trainer._step = graph.trainer._capture()
    for (name, one), other in zip(
        graph.trainer.model.state_dict().items(), plain.trainer.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
    for state in graph.trainer.optimizer.state.values():
        assert all((value == 0).all() for value in state.values())
    assert graph.trainer._fused_sgd is not None
    for k, half in graph.trainer._fused_sgd.copies.items():
        assert torch.equal(half, graph.trainer.parameters[k].bfloat16())
    assert not graph.trainer._position.any()


def test_a_run_resumes_and_weights_keep_their_norms() -> None:
    whole, first, rest = (work(NAP) for _ in range(3))
    rows = finished(whole)
    first.step()
    rest.load_state_dict(copy.deepcopy(first.state_dict()))
    again = finished(rest)
    assert [row["step"] for row in again] == [row["step"] for row in rows[1:]]
    assert again[-1]["loss"] == pytest.approx(rows[-1]["loss"], rel=5e-2)
    fresh = work(NAP)
    before = {n: p.detach().norm().item() for n, p in fresh.trainer.model.named_parameters() if p.ndim > 1}
    after = {n: p.detach().norm().item() for n, p in whole.trainer.model.named_parameters() if p.ndim > 1}
    assert after == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize("compile_", [False, True], ids=["eager", "compiled"])
def test_dropout_in_a_graph_is_drawn_for_each_update_from_the_seed_of_the_pass(compile_: bool) -> None:
    run = work(BASELINE, replace(TINY, crop_padding=0, dropout=0.5), compile_=compile_)

    def learnt(seed: int) -> list[float]:
        """Losses of updates that change nothing but BatchNorm's averages, on the same images each."""
        found = []
        for count in (1, 2, 3):
            run.trainer.train_epoch(
                run.trainer.batches[:1, 0].repeat(count, 1), seed, lambda step: (0.0, 0.0), 0
            )
            found.append(count * run.trainer.read(1)["loss"])
        return [found[0], found[1] - found[0], found[2] - found[1]]

    first = learnt(1)
    assert first == pytest.approx(learnt(1), rel=1e-3)
    one, two, three = first
    assert len({round(one, 3), round(two, 3), round(three, 3)}) == 3
    assert first != pytest.approx(learnt(2), rel=1e-3)


@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP], ids=lambda arm: arm.name)
def test_networks_that_learn_together_learn_what_each_learns_alone(arm: VisionArm) -> None:
    together = CifarWork(NetworkRun(arm, TINY, 0, seeds_per_run=3), CUDA, compile_=True)
    assert together._stack is not None
    rows = finished(together)
    assert all(checked_kernel._passed.values()), "a kernel differs from PyTorch's result"
    for seed in range(3):
        alone = CifarWork(NetworkRun(arm, TINY, seed), CUDA, compile_=True, stack=False)
        found = [row["loss"] for row in rows if row["seed"] == seed]
        assert found == pytest.approx(losses(alone), rel=5e-2)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_a_pass_never_waits_for_the_device() -> None:
    run = work(NAP)
    run.step()
    order = run.trainer.batches[:, 0].clone()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        run.trainer.train_epoch(order, 1, lambda step: (1e-3, 1e-3), 0)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings(r"ignore:\s*Online softmax:UserWarning")  # Inductor's, of three classes
@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP], ids=lambda arm: arm.name)
def test_files_are_learnt_by_a_graph_as_by_plain_updates(images: str, arm: VisionArm) -> None:
    plain, graph = viewing(images, arm, graph=False), viewing(images, arm)
    before = weights(plain).clone()
    expected = finished(plain)
    for found, row in zip(finished(graph), expected, strict=True):
        for name in ("loss", "test_loss", "gradient_norm"):
            assert found[name] == pytest.approx(row[name], rel=5e-2), name
    moved = (weights(plain) - before).norm()
    assert (weights(graph) - weights(plain)).norm() < 0.1 * moved
    for one, other in zip(graph.trainer.model.buffers(), plain.trainer.model.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2)
    assert losses(viewing(images, arm, compile_=True)) == pytest.approx(
        [row["loss"] for row in expected], rel=5e-2
    )


def test_a_recording_of_files_leaves_no_trace(images: str) -> None:
    graph, plain = viewing(images, NAP), viewing(images, NAP, graph=False)
    graph.trainer.set_rates_(0.1, 0.1)
    graph.trainer.model.train()
    graph._update()
    found, expected = graph.trainer.state_dict(), plain.trainer.state_dict()
    for name, tensor in expected["model"].items():
        assert torch.equal(found["model"][name], tensor), name
    assert not any(momentum.any() for momentum in found["momentum"])
    assert not any(tensor.any() for tensor in (found["right"], *found["watch"].values()))
    graph.trainer.monitor.check()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_graph_goes_on_with_a_state_that_is_put_under_it(images: str, workers: int) -> None:
    """In the work that recorded it, in another, and in one without a graph; batches are pinned beside it."""
    first = viewing(images, NAP, workers=workers)
    first.step()
    state = copy.deepcopy(first.state_dict())
    rows, reached = finished(first), weights(first).clone()
    start = torch.cat(
        [state["trainer"]["model"][n].flatten() for n, _ in first.trainer.model.named_parameters()]
    )
    for run in (first, viewing(images, NAP, workers=workers), viewing(images, NAP, graph=False)):
        run.load_state_dict(copy.deepcopy(state))
        again = finished(run)
        assert [row["step"] for row in again] == [row["step"] for row in rows] == [6, 9, 12]
        assert [row["loss"] for row in again] == pytest.approx([row["loss"] for row in rows], rel=5e-2)
        assert (weights(run) - reached).norm() < 0.1 * (reached - start).norm()
