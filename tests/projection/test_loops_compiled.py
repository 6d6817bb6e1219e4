"""`torch.compile` of the model and of the optimizer's step: one projection an update, compiled once."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.testing import assert_close

from nap.integrations.monitor import Monitor
from nap.projection.project import Projector
from projection_nets import net, step, worst

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.5),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("every", [1, 3])
def test_a_compiled_step_is_compiled_once_and_followed_by_one_projection(kind: str, every: int) -> None:
    runs = []
    for compiled in (False, True):
        model, counter = net(), CompileCounter()
        optimizer: Any = OPTIMIZERS[kind](model.parameters())
        projector, measured = Projector(model, every=every).attach(optimizer), list[Any]()
        Monitor(model, torch.ones(8, 6), measured.append, every=4).attach(optimizer)
        if compiled:
            optimizer.step = torch.compile(optimizer.step, backend=counter)
        held, frames = [], []
        for seed in range(9):
            step(model, optimizer, seed)
            held.append(worst(projector) <= 1e-6)
            frames.append(counter.frame_count)
        assert held == [(update + 1) % every == 0 for update in range(9)]
        assert set(projector.updates.values()) == {9}
        assert len(measured) == 3
        assert frames[2] == frames[8], "compiled anew"  # the first steps make the state of Adam
        assert (frames[8] > 0) == (compiled and kind != "adamw fused")  # its one kernel is not compiled
        runs.append(model.state_dict())
    assert_close(runs[0], runs[1])


def test_a_compiled_model_is_compiled_once() -> None:
    model, counter = net(), CompileCounter()
    compiled = cast(nn.Module, torch.compile(model, backend=counter))
    optimizer = torch.optim.Adam(compiled.parameters(), lr=0.05)
    projector = Projector(compiled).attach(optimizer)
    for seed in range(5):
        step(compiled, optimizer, seed)
        assert worst(projector) <= 1e-6
    assert counter.frame_count == 1
    plain = Projector(model)
    plain.load_state_dict(projector.state_dict())  # the names of a compiled model are longer
    assert worst(plain) <= 1e-6


@pytest.mark.slow
def test_both_compiled_by_inductor() -> None:
    model = net()
    compiled = cast(nn.Module, torch.compile(model))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.05))
    projector = Projector(model).attach(optimizer)
    optimizer.step = torch.compile(optimizer.step)
    for seed in range(3):
        step(compiled, optimizer, seed)
        assert worst(projector) <= 1e-6
    assert set(projector.updates.values()) == {3}
