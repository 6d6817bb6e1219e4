"""Loops as they are, with relative steps or a brake: skips, freezing, compiling, resuming; and refusals."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import nap
from limited_runs import LR, learn, limited_run, weights
from nap.projection.project import Projector
from projection_nets import net, step

EACH = pytest.mark.parametrize("options", [{"update": "relative"}, {"brake": 0.5}], ids=["relative", "brake"])


@pytest.mark.parametrize("fused", [False, True])
@EACH
def test_a_step_that_a_scaler_skips_changes_nothing(options: Any, fused: bool) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, fused=fused)
    projector = Projector(model, **options).attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for overflow in (False, True, False, True):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(8, 6)).square().mean()).backward()
        if overflow:
            model.get_parameter("0.weight").grad[0, 0] = torch.inf
        before = weights(model)
        scaler.step(optimizer)
        scaler.update()
        if overflow:
            assert_close(weights(model), before, rtol=0, atol=0)
    assert set(projector.updates.values()) == {2}


@EACH
def test_what_is_frozen_stays_as_it_is(options: Any) -> None:
    model = net()
    frozen = model.get_parameter("3.weight").requires_grad_(False)
    before = frozen.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    Projector(model, **options).attach(optimizer)
    learn(model, [optimizer], range(3))
    assert_close(frozen.detach(), before, rtol=0, atol=0)
    frozen.requires_grad_(True)
    learn(model, [optimizer], range(3, 5))
    assert (frozen - before).norm() > 1e-3


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@EACH
def test_a_compiled_step_does_the_same(options: Any) -> None:
    runs = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model = net()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=LR)
        Projector(model, **options).attach(optimizer)
        if compiled:
            optimizer.step = torch.compile(optimizer.step, backend="eager")
        learn(model, [optimizer], range(3))
        runs.append(weights(model))
    assert_close(*runs)


@EACH
def test_a_rate_that_is_a_tensor_is_taken_as_a_number(options: Any) -> None:
    runs = []
    for rate in (LR, torch.tensor(LR)):
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, foreach=False)
        Projector(model, **options).attach(optimizer)
        learn(model, [optimizer], range(3))
        runs.append(weights(model))
    assert_close(*runs)


@EACH
def test_a_resumed_run_equals_an_unbroken_one(options: Any) -> None:
    model, optimizers, projector = limited_run("AdamW", range(3), **options)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizers[0].state_dict(), projector.state_dict()], file)
    learn(model, optimizers, range(3, 6))
    file.seek(0)
    states = torch.load(file, weights_only=True)
    again = net().double()
    optimizer = torch.optim.AdamW(again.parameters(), lr=LR)
    resumed = Projector(again, **options).attach(optimizer)
    for part, state in zip((again, optimizer, resumed), states, strict=True):
        part.load_state_dict(state)
    learn(again, [optimizer], range(3, 6))
    assert_close(weights(again), weights(model), rtol=0, atol=0)


@EACH
def test_a_saved_run_goes_on_with_its_limits(options: Any, tmp_path: Any) -> None:
    model, optimizers, projector = limited_run("AdamW", range(3), **options)
    nap.save(tmp_path / "run.pt", model, projector, optimizers[0])
    learn(model, optimizers, range(3, 6))
    again = net().double()
    optimizer = torch.optim.AdamW(again.parameters(), lr=LR)
    resumed = nap.load(tmp_path / "run.pt", again).resume(optimizer)
    assert repr(resumed) == repr(projector)
    learn(again, [optimizer], range(3, 6))
    assert_close(weights(again), weights(model), rtol=0, atol=0)


@EACH
def test_a_state_of_another_kind_of_step_is_refused_with_a_way_out(options: Any) -> None:
    model, ((option, value),) = net(), options.items()
    limited, plain = Projector(model, **options), Projector(model)
    state = plain.state_dict()  # today's, and as it was before there were limits
    assert "update" not in state["settings"]
    with pytest.raises(ValueError, match=rf"made with {option}=.*has {option}={value!r}.*as before"):
        limited.load_state_dict(state)
    state["settings"][option] = value
    limited.load_state_dict(state)  # the way out
    with pytest.raises(ValueError, match=rf"Projector\(model, {option}={value!r}\) goes on"):
        plain.load_state_dict(limited.state_dict())


@EACH
def test_updates_that_cannot_be_seen_are_refused(options: Any) -> None:
    model = net()
    projector = Projector(model, **options)
    with pytest.raises(ValueError, match=r"LBFGS moves the weights several times.*update='free'"):
        projector.attach(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ValueError, match=r"project_\(\) sees no updates.*attach\(optimizer\) first"):
        projector.project_()
    with pytest.raises(ValueError, match=r"every=2 projects rarely.*take every=1"):
        Projector(model, every=2, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    projector.attach(optimizer)
    projector.project_(copy.deepcopy(model))  # averages go to the radii as ever
    optimizer._optimizer_step_pre_hooks.clear()
    with pytest.raises(ValueError, match="step of SGD ended whose beginning was not seen"):
        step(model, optimizer)


@EACH
def test_a_step_that_goes_back_and_forth_is_refused(options: Any) -> None:
    class Several(torch.optim.SGD):
        def step(self, closure: Callable[[], Any]) -> None:  # type: ignore[override]
            for _ in range(3):
                closure()
                with torch.no_grad():
                    for parameter in self.param_groups[0]["params"]:
                        parameter.sub_(0.01 * parameter.grad)

    model = net()
    optimizer = Several(model.parameters(), lr=LR)
    Projector(model, **options).attach(optimizer)
    with pytest.raises(ValueError, match=r"0\.weight moved between backward passes of one Several\.step"):
        optimizer.step(lambda: model(torch.ones(4, 6)).square().mean().backward())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"update": "radial"}, r"update='radial' is not a choice; take one of \['free', 'relative'\]"),
        ({"brake": 1.5}, "brake=1.5 .* take a number from 0 to 1"),
        ({"brake": math.nan}, "brake=nan .* take a number from 0 to 1"),
        ({"brake": True}, "brake=True"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Projector(net(), **options)


@pytest.mark.parametrize(
    ("rate", "words"), [(None, "lr=None, and .* a number"), (1.0, "lr=1, which .* share")]
)
def test_rates_that_are_no_relative_steps_are_refused(rate: Any, words: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(ValueError, match=words):
        Projector(model, update="relative").attach(optimizer)
    assert not optimizer._optimizer_step_post_hooks


def test_both_limits_say_so() -> None:
    assert "3 projected, 6 left free, relative steps, brake 0.5; not" in repr(
        Projector(net(), update="relative", brake=0.5)
    )
