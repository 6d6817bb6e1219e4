"""What only a GPU can show of Rainbow: its graphs compute what the plain steps compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpu import needs_gpu
from nap.lab.loops.rainbow.run import RainbowWork
from nap.lab.loops.rainbow.settings import FOUR, NAP, AgentRun, RainbowArm
from tiny_agents import TINY, finished

pytestmark = needs_gpu


def on_gpu(variant: RainbowArm, **options: Any) -> RainbowWork:
    what = AgentRun(variant, TINY, ("catch", "catch-mirrored"), frames=320, intervals=2, seed=0)
    return RainbowWork(what, torch.device("cuda"), **options)


@pytest.mark.parametrize("variant", FOUR, ids=lambda v: v.name)
def test_graphs_compute_what_plain_steps_compute(variant: RainbowArm) -> None:
    """For one interval: later on the smallest difference may change an action, and with it everything."""
    graph, plain = on_gpu(variant, graph=True), on_gpu(variant, graph=False)
    one, other = graph.step(), plain.step()
    assert one[0]["score"] == other[0]["score"]
    assert one[0]["loss"] == pytest.approx(other[0]["loss"], rel=1e-3)
    values = dict(plain.learner.online.named_parameters())
    for name, parameter in graph.learner.online.named_parameters():
        torch.testing.assert_close(parameter, values[name], rtol=1e-2, atol=1e-4)


def test_making_graphs_leaves_no_trace() -> None:
    graph, plain = on_gpu(NAP, graph=True), on_gpu(NAP, graph=False)
    values = dict(plain.learner.online.named_parameters())
    for name, parameter in graph.learner.online.named_parameters():
        assert torch.equal(parameter, values[name])
        state = graph.learner.optimizer.state[parameter]
        assert all((value == 0).all() for value in state.values())
    assert graph.replay.count() == 0


def test_a_sequence_runs_and_resumes_on_the_gpu() -> None:
    whole, first, rest = (on_gpu(NAP) for _ in range(3))
    rows = finished(whole)
    first.step()
    rest.load_state_dict(first.state_dict())
    again = finished(rest)
    assert [row["frames"] for row in again] == [row["frames"] for row in rows[1:]]
    assert all(row["loss"] > 0 for row in again)
