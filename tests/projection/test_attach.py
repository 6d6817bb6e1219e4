"""`Projector.attach`: norms hold through real training, and optimizers that would not do are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import nap
from nap.projection.project import Projector
from projection_nets import F64, net, sgd, step, traced, worst

# --- norms hold through training

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": sgd,
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, foreach=False),
    "adam-foreach": lambda p: torch.optim.Adam(p, lr=0.05, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
    "groups": lambda p: torch.optim.Adam([{"params": [q], "lr": 0.01 * i} for i, q in enumerate(p, 1)]),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


@pytest.mark.filterwarnings("ignore:.*bfloat16")  # advised against, and the norms hold all the same
@pytest.mark.parametrize("per", ["tensor", "row"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3), (F64, 1e-14)]
)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_norms_hold_through_training(kind: str, dtype: torch.dtype, tolerance: float, per: Any) -> None:
    model = net().to(dtype)
    optimizer = OPTIMIZERS[kind](list(model.parameters()))
    projector = Projector(model, per=per).attach(optimizer)
    directions = model.get_parameter("3.weight").detach().clone()
    for seed in range(20):
        step(model, optimizer, seed)
        assert worst(projector) <= tolerance
    assert (model.get_parameter("3.weight") - directions).norm() > 0.01  # it did learn
    assert set(projector.updates.values()) == {20}


def test_every_counts_updates_and_not_backward_passes() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    projector = Projector(model, every=3).attach(optimizer)
    held = []
    for update in range(6):
        for micro in range(2):  # gradient accumulation
            model(
                torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * update + micro))
            ).sum().backward()
            model(torch.ones(1, 6)).square().sum().backward()
        optimizer.step()
        held.append(worst(projector) <= 1e-6)
    assert held == [False, False, True, False, False, True]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("every", [1, 2])
def test_steps_that_a_scaler_skips_are_no_updates(fused: bool, every: int) -> None:
    model = traced(net())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, fused=fused)
    projector = Projector(model, every=every, affine="decay", decay=0.1).attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    weight, scale = model.get_parameter("0.weight"), model.get_parameter("1.weight")
    real = 0
    for update, overflow in enumerate([False, True, True, False, False, True, False]):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(8, 6)).square().mean()).backward()
        if overflow:
            assert weight.grad is not None
            weight.grad[0, 0] = torch.inf
            weight.data *= 1.01  # a projection would undo this
        before = weight.detach().clone(), scale.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        if overflow:
            assert_close((weight.detach(), scale.detach()), before, rtol=0, atol=0)
            continue
        real += 1
        assert (worst(projector) <= 1e-6) == (real % every == 0), update
    assert set(projector.updates.values()) == {real}
    assert projector.state_dict()["updates"]["0.weight"] == 4


def test_two_optimizers_share_the_work_each_at_its_own_pace() -> None:
    model = net()
    first = sgd([model.get_parameter("0.weight"), *model.get_submodule("1").parameters()])
    second = sgd([model.get_parameter(f"{i}.weight") for i in (3, 6)])
    projector = Projector(model, every=2).attach(first, second)
    for parameter in model.parameters():
        parameter.data *= 2
    for optimizer, due in ((first, set()), (second, set()), (first, {"0.weight"})):
        step(model, optimizer)
        close = {name for name, ratio in projector.norm_ratios().items() if abs(ratio - 1) < 1e-6}
        assert close == due
    assert projector.updates == {"0.weight": 2, "3.weight": 1, "6.weight": 1}


@pytest.mark.parametrize("on_device", [False, True])
def test_weights_that_optimizers_share_are_each_projected_at_their_own_count(on_device: bool) -> None:
    model = net()
    weights = {i: model.get_parameter(f"{i}.weight") for i in (0, 3, 6)}
    first, second = (
        torch.optim.SGD([weights[i] for i in some], lr=0.5, fused=on_device) for some in ((0, 3), (3, 6))
    )
    projector = Projector(model, every=2).attach(first, second)
    if on_device:  # as under a scaler with a fused optimizer: counts are tensors, and no one may read them
        for optimizer in (first, second):
            optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    projected = []
    for optimizer in (first, second, first, second):
        for weight in weights.values():
            weight.data *= 2
        optimizer.step()
        projected.append({n for n, ratio in projector.norm_ratios().items() if abs(ratio - 1) < 1e-6})
    assert projected == [set(), {"3.weight"}, {"0.weight"}, {"3.weight", "6.weight"}]
    assert projector.updates == {"0.weight": 2, "3.weight": 4, "6.weight": 2}


def test_accelerate_like_wrappers_are_opened() -> None:
    class Wrapper(torch.optim.Optimizer):
        """Like accelerate's: a subclass that never ran Optimizer.__init__."""

        def __init__(self, optimizer: torch.optim.Optimizer):
            self.optimizer = optimizer

    model = net()
    optimizer = sgd(model.parameters())
    projector = Projector(model).attach(Wrapper(optimizer))
    step(model, optimizer)
    assert worst(projector) <= 1e-6
    assert projector.attached == (optimizer,)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # torch's own, in dynamo
def test_a_compiled_step_projects_too() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    projector = Projector(model).attach(optimizer)
    compiled = torch.compile(optimizer.step, backend="eager")
    for seed in range(3):
        model(torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))).square().sum().backward()
        compiled()
        assert worst(projector) <= 1e-6
    assert projector.updates["0.weight"] == 3


# --- refusals


def test_optimizers_that_would_not_do_are_refused() -> None:
    model = net()
    projector, optimizer = Projector(model), sgd(model.parameters())
    with pytest.raises(ValueError, match="holds no parameter of the plan; build it from this very model"):
        projector.attach(sgd(net().parameters()))
    with pytest.raises(ValueError, match=r"6\.weight: held by no attached optimizer.*attach\(a, b\)"):
        projector.attach(sgd([model.get_parameter("0.weight"), model.get_parameter("3.weight")]))
    with pytest.raises(ValueError, match=r"object is not a torch\.optim\.Optimizer.*project_"):
        projector.attach(object())
    with pytest.raises(ValueError, match="has a Projector already"):
        projector.attach(optimizer, optimizer)
    assert not optimizer._optimizer_step_post_hooks  # all or nothing
    projector.attach(optimizer)
    for again in (projector, Projector(model)):
        with pytest.raises(ValueError, match="this SGD has a Projector already; call detach"):
            again.attach(optimizer)


def converted() -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 5))
    early = sgd(model.parameters())
    nap.normalize_(model, torch.randn(4, 6))
    return model, early


@pytest.mark.parametrize("affine", ["free", "decay"])
def test_an_optimizer_made_before_step_1_is_refused(affine: Any) -> None:
    model, early = converted()
    norms = [name for name, _ in model.named_parameters() if "nap_norm" in name]
    words = rf"SGD: built before nap\.normalize_.*train {', '.join(norms)}; build the optimizer after it"
    with pytest.raises(ValueError, match=words):
        Projector(model, affine=affine).attach(early)
    assert not early._optimizer_step_post_hooks
    Projector(model, affine=affine, exclude=norms).attach(early)
    model, early = converted()
    late = sgd([model.get_parameter(name) for name in norms])
    projector = Projector(model, affine=affine)
    with pytest.raises(ValueError, match=r"attach\(a, b\)"):
        projector.attach(early)
    projector.attach(early, late)
    for optimizer in (early, late):
        step(model, optimizer)
    assert worst(projector) <= 1e-6
    assert set(projector.updates.values()) == {1}


def test_frozen_norms_need_no_optimizer() -> None:
    model, early = converted()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("nap_norm" not in name)
    Projector(model).attach(early)


def test_a_joint_pair_must_not_be_split_between_optimizers() -> None:
    model = traced(net())
    offsets = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    with pytest.raises(ValueError, match=r"1\.weight, 1\.bias: move together.*holds only one"):
        Projector(model, affine="joint").attach(sgd(offsets), sgd(others))
