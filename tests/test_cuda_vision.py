"""What only a GPU can show of image classifiers: an update recorded as a graph is the update."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from nap.lab.training.network_run import NetworkRun
from nap.lab.vision.arms import BASELINE, NAP, NORM_ONLY, VisionArm
from nap.lab.vision.run import VisionWork
from nap.lab.vision.settings import Seeing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TINY = Seeing(
    data="digits", channels=(8, 0, 16, 0), hidden=(16,), batch_size=200, steps=21, every=1, crop=1, flip=False
)  # seven updates a pass


def work(arm: VisionArm, **options: Any) -> VisionWork:
    return VisionWork(NetworkRun(arm, TINY, 0), torch.device("cuda"), **options)


def finished(run: VisionWork) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while run.done < run.total:
        rows += run.advance()
    return rows


def losses(run: VisionWork) -> list[float]:
    return [row["loss"] for row in finished(run)]


@pytest.mark.parametrize("arm", [BASELINE, NORM_ONLY, NAP], ids=lambda arm: arm.name)
def test_a_graph_learns_what_plain_updates_learn(arm: VisionArm) -> None:
    plain = losses(work(arm, graph=False))
    assert losses(work(arm, graph=True)) == pytest.approx(plain, rel=2e-2)
    assert losses(work(arm, graph=True, compile_=True)) == pytest.approx(plain, rel=5e-2)


def test_recording_leaves_no_trace() -> None:
    graph, plain = work(NAP, graph=True), work(NAP, graph=False)
    graph.trainer._step = graph.trainer._recorded()
    for (name, one), other in zip(
        graph.trainer.model.state_dict().items(), plain.trainer.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name
    for state in graph.trainer.optimizer.state.values():
        assert all((value == 0).all() for value in state.values())
    assert graph.trainer._descent is not None
    for k, half in graph.trainer._descent.copies.items():
        assert torch.equal(half, graph.trainer.parameters[k].bfloat16())
    assert not graph.trainer._at.any()


def test_a_run_resumes_and_weights_keep_their_norms() -> None:
    whole, first, rest = (work(NAP) for _ in range(3))
    rows = finished(whole)
    first.advance()
    rest.load_state_dict(copy.deepcopy(first.state_dict()))
    again = finished(rest)
    assert [row["step"] for row in again] == [row["step"] for row in rows[1:]]
    assert again[-1]["loss"] == pytest.approx(rows[-1]["loss"], rel=5e-2)
    fresh = work(NAP)
    before = {n: p.detach().norm().item() for n, p in fresh.trainer.model.named_parameters() if p.ndim > 1}
    after = {n: p.detach().norm().item() for n, p in whole.trainer.model.named_parameters() if p.ndim > 1}
    assert after == pytest.approx(before, rel=1e-5)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_a_pass_never_waits_for_the_device() -> None:
    run = work(NAP)
    run.advance()
    order = run.trainer.draws[:, 0].clone()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        run.trainer.learn(order, 1, lambda step: 1e-3, 0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
