"""`Projector`: what it decides, what it keeps through real training, and what it refuses."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.testing import assert_close

import nap
from nap.conversion.placement import Plan
from nap.projection.project import Projector
from nap.weights import PLAN_ATTRIBUTE, Role, Weight, WeightTable

F64 = torch.float64


def net(norm: Any = nn.LayerNorm, act: type[nn.Module] = nn.ReLU, **kw: Any) -> Any:
    """Two hidden layers, normalised outputs: every weight but none of the affine is scale-invariant."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8, bias=False),
        norm(8, **kw),
        act(),
        nn.Linear(8, 7, bias=False),
        norm(7, **kw),
        act(),
        nn.Linear(7, 5, bias=False),
        norm(5, **kw),
    )
    for parameter in model.parameters():  # norms drift from (1, 0), as they do in training
        parameter.data += 0.1 * torch.randn(parameter.shape)
    return model


def traced(model: Any, *, homogeneous: bool = True) -> Any:
    """`model` as if it came from nap.normalize_: roles by name, the last matrix being the output."""
    rows = {}
    matrices = [name for name, p in model.named_parameters() if p.ndim >= 2]
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            role = Role.OUTPUT if name == matrices[-1] else Role.SCALE_INVARIANT
            rows[name] = Weight(name, role)
        else:
            part: Any = "offset" if name.endswith("bias") else "scale"
            rows[name] = Weight(name, Role.AFFINE, part=part, homogeneous=homogeneous)
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable(rows)))
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(seed))
    x = x.to(next(model.parameters()).dtype)
    optimizer.zero_grad()
    (model(x) - 1).square().mean().backward()
    optimizer.step()


def worst(projector: Projector) -> float:
    return max(abs(ratio - 1) for ratio in projector.norm_ratios().values())


# --- the function stays the same


def grown(model: nn.Module, projector: Projector, factors: Callable[[Tensor], Tensor]) -> None:
    for name in projector.norm_ratios():
        weight = model.get_parameter(name)
        weight.data *= factors(weight)


def test_per_tensor_keeps_a_layernorm_net() -> None:
    model = net(eps=0.0).to(F64)
    projector, x = Projector(model), torch.randn(9, 6, dtype=F64)
    before = model(x)
    grown(model, projector, lambda w: torch.tensor(3.7, dtype=F64))
    projector.project_()
    assert worst(projector) < 1e-14
    assert_close(model(x), before, rtol=0, atol=1e-12)


def test_per_row_keeps_a_batchnorm_net() -> None:
    model = net(nn.BatchNorm1d, eps=1e-30).to(F64)
    projector, x = Projector(model, per="row"), torch.randn(9, 6, dtype=F64)
    before = model(x)
    grown(model, projector, lambda w: 0.5 + torch.rand(len(w), 1, dtype=F64))
    assert worst(projector) > 0.05
    projector.project_()
    assert worst(projector) < 1e-14
    assert_close(model(x), before, rtol=0, atol=1e-12)


def test_joint_keeps_a_relu_layernorm_net_and_is_refused_for_gelu() -> None:
    # the last norm is the output, whose scale is the function's: it is left out
    model = traced(net(eps=0.0).to(F64))
    projector, x = Projector(model, affine="joint", exclude=["7"]), torch.randn(9, 6, dtype=F64)
    before = model(x)
    projector.project_()
    assert_close(model(x), before, rtol=0, atol=1e-12)
    norm = model.get_submodule("1")
    assert_close(sum(p.square().sum() for p in norm.parameters()), torch.tensor(8.0, dtype=F64))
    with pytest.raises(ValueError, match=r"1\.weight.*not ReLU-like.*affine='decay'"):
        Projector(traced(net(act=nn.GELU), homogeneous=False), affine="joint")


def test_joint_takes_a_scale_without_offset_and_decay_pulls_to_one_and_zero() -> None:
    model = traced(net(nn.RMSNorm))
    Projector(model, affine="joint").project_()
    assert_close(model.get_parameter("4.weight").norm(), torch.tensor(7.0).sqrt())
    model = net()
    scale, offset = (model.get_parameter(f"1.{leaf}").detach().clone() for leaf in ("weight", "bias"))
    Projector(model, affine="decay", decay=0.25).project_()
    assert_close(model.get_parameter("1.weight"), 0.75 * scale + 0.25)
    assert_close(model.get_parameter("1.bias"), 0.75 * offset)


# --- norms hold through training


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.5)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": sgd,
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, foreach=False),
    "adam-foreach": lambda p: torch.optim.Adam(p, lr=0.05, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
    "groups": lambda p: torch.optim.Adam([{"params": [q], "lr": 0.01 * i} for i, q in enumerate(p, 1)]),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


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


# --- every kind of weight


class Zoo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv1d(2, 3, 3), nn.Conv2d(2, 3, 3), nn.Conv3d(2, 3, 3)
        self.up = nn.ConvTranspose2d(2, 3, 2)
        self.table = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.table.weight
        self.experts = nn.Parameter(torch.randn(3, 4, 2) * torch.tensor([1.0, 10.0, 0.1]).view(3, 1, 1))
        self.batch = nn.BatchNorm1d(3)

    def rows(self) -> dict[str, Weight]:
        return {"experts": Weight("experts", Role.SCALE_INVARIANT, stacked=1, out_axis=2)}


def zoo() -> Zoo:
    torch.manual_seed(0)
    model = Zoo()
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable(model.rows())))
    return model


@pytest.mark.parametrize("per", ["tensor", "row"])
def test_every_kind_of_weight_keeps_its_norms(per: Any) -> None:
    model = zoo()
    projector = Projector(model, per=per)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rows = {row.name: row for row in projector.plan.rows}
    assert "head.weight" not in rows  # tied to the table: once
    expected = dict.fromkeys(["conv1.weight", "conv2.weight", "conv3.weight", "up.weight", "table.weight"], 1)
    expected["experts"] = 3
    if per == "row":  # up: (in, out, ...), experts: (expert, in, out)
        expected = {**dict.fromkeys(expected, 3), "table.weight": 5, "experts": 6}
    assert {name: row.norms for name, row in rows.items() if row.norms} == expected
    for name in expected:
        model.get_parameter(name).data *= 2
    model.experts.data[1] *= 5  # must not leak into the other experts
    assert worst(projector) > 0.9
    projector.project_()
    assert worst(projector) <= 1e-6
    for name, parameter in model.named_parameters():
        assert_close(parameter.detach(), before[name])


def test_the_plan_can_be_read_and_saved() -> None:
    projector = Projector(traced(net()), output="free", exclude=["0"])
    lines = str(projector.plan).splitlines()
    assert lines[0].split() == ["parameter", "radius", "role", "policy"]
    assert [line.split()[0] for line in lines[1:]] == [name for name, _ in net().named_parameters()]
    assert "left free: excluded" in lines[1]
    assert "projected: the function stays the same" in lines[4]
    assert "left free: output='free'" in lines[7]
    rows = json.loads(json.dumps(projector.plan.to_json()))
    assert rows[3]["radius"] == pytest.approx(net().get_parameter("3.weight").norm().item())
    assert rows[0]["radius"] is None
    assert projector.plan.names("project") == ["3.weight"]
    assert "only where BatchNorm follows" in Projector(traced(net()), per="row").plan.rows[0].reason


def test_unused_matrices_are_projected_and_unused_vectors_are_not() -> None:
    model = nn.Linear(3, 4)
    rows = {name: Weight(name, Role.UNUSED) for name, _ in model.named_parameters()}
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable(rows)))
    plan = Projector(model).plan
    assert plan.names("project") == ["weight"]
    assert "never used it" in plan.rows[0].reason


@pytest.mark.parametrize(
    "name",
    ["6", "6.weight", "parameter", "module", "list of both"],
)
def test_exclude_takes_names_parameters_and_modules(name: str) -> None:
    model = net()
    last: Any = model.get_submodule("6")
    entry = {"parameter": last.weight, "module": last, "list of both": ["6.weight", last]}.get(name, name)
    assert Projector(model, exclude=entry).plan.names("project") == ["0.weight", "3.weight"]


def test_a_tied_weight_is_excluded_by_either_name() -> None:
    assert "table.weight" not in Projector(zoo(), exclude=["head.weight"]).plan.names("project")


# --- moves, copies, resumption


@pytest.mark.parametrize("dtype", [torch.bfloat16, F64])
def test_radii_survive_a_move_to_another_type(dtype: torch.dtype) -> None:
    model = net()
    exact = {name: p.double().norm().item() for name, p in model.named_parameters() if p.ndim == 2}
    projector = Projector(model)
    model.to(dtype)
    for name in exact:
        model.get_parameter(name).data *= 3
    projector.project_()
    for name, radius in exact.items():
        tolerance = 4e-3 if dtype == torch.bfloat16 else 1e-6
        assert model.get_parameter(name).double().norm().item() == pytest.approx(radius, rel=tolerance)


def test_a_parameter_that_is_swapped_is_seen_and_one_that_changed_shape_is_an_error() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 4, bias=False))
    projector = Projector(model)
    radius = model[0].weight.norm().detach()
    model[0].weight = nn.Parameter(torch.ones(4, 3))
    projector.project_()
    assert_close(model[0].weight.norm(), radius)
    model[0].weight = nn.Parameter(torch.ones(5, 3))
    with pytest.raises(ValueError, match=r"0\.weight has the shape \[5, 3\], and had \[4, 3\]"):
        projector.project_()


def test_a_resumed_run_equals_an_unbroken_one() -> None:
    def start() -> tuple[nn.Module, torch.optim.Optimizer, Projector]:
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        return model, optimizer, Projector(model, every=3).attach(optimizer)

    model, optimizer, projector = start()
    for seed in range(4):  # stops between two projections, off the radius
        step(model, optimizer, seed)
    parts = (model, optimizer, projector)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    for seed in range(4, 9):
        step(model, optimizer, seed)

    resumed = start()
    file.seek(0)
    states = torch.load(file, weights_only=True)
    resumed[0].load_state_dict(states[0])
    late = Projector(resumed[0], every=3)  # measures the trained weights; loading brings the radii back
    resumed[2].detach()
    late.attach(resumed[1])
    resumed[1].load_state_dict(states[1])
    late.load_state_dict(states[2])
    for seed in range(4, 9):
        step(resumed[0], resumed[1], seed)
    assert_close(resumed[0].state_dict(), model.state_dict(), rtol=0, atol=0)
    assert late.updates == projector.updates == dict.fromkeys(["0.weight", "3.weight", "6.weight"], 9)


def saved(change: Callable[[dict[str, Any]], Any]) -> Any:
    state = Projector(net()).state_dict()
    return change(state) or state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["settings"].update(every=5), r"settings\.every: 5 in the state, 1 here"),
        (lambda s: s["settings"].update(extra=5), r"settings\.extra: 5 in the state, nothing here"),
        (lambda s: s["radii"].pop("0.weight"), r"radii\.0\.weight: nothing in the state"),
        (lambda s: s["radii"].update({"0.weight": torch.ones(8, 1)}), r"radii\.0\.weight: \[8, 1\]"),
        (lambda s: s["shapes"].update({"0.weight": [8, 9]}), r"shapes\.0\.weight: \[8, 9\] .* \[8, 6\] here"),
        (lambda s: s["actions"].update({"6.weight": "free"}), r"actions\.6\.weight: free .* project here"),
        (lambda s: s["updates"].pop("0.weight"), r"updates\.0\.weight: nothing"),
        (lambda s: s.pop("updates"), r"updates: missing"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_with_the_difference(change: Any, message: str) -> None:
    projector = Projector(net())
    before = projector.state_dict()
    with pytest.raises(ValueError, match=message):
        projector.load_state_dict(saved(lambda s: (change(s), s)[1]))
    assert_close(projector.state_dict()["radii"], before["radii"])


def test_a_state_is_a_copy() -> None:
    projector = Projector(net())
    projector.state_dict()["radii"]["0.weight"].zero_()
    assert worst(projector) <= 1e-6


def test_copies_of_the_model_are_left_alone_and_copies_of_the_projector_work_detached() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    projector = Projector(model).attach(optimizer)
    alone = copy.deepcopy(model)
    pair = copy.deepcopy((model, projector))
    reloaded = pickle.loads(pickle.dumps((model, projector)))
    alone.get_parameter("0.weight").data *= 2
    step(model, optimizer)
    assert alone.get_parameter("0.weight").norm() > 1.9 * model.get_parameter("0.weight").norm()
    for other, copied in (pair, reloaded):
        assert copied.attached == ()
        other.get_parameter("0.weight").data *= 2
        assert copied.norm_ratios()["0.weight"] == pytest.approx(2)
        copied.project_()
        assert worst(copied) <= 1e-6
        fresh = sgd(other.parameters())
        step(other, copied.attach(fresh).attached[0])
        assert set(copied.updates.values()) == {1}
    assert projector.attached == (optimizer,)


def test_hooks_vanish_from_a_copied_optimizer_and_detach_removes_them() -> None:
    model = net()
    optimizer = sgd(model.parameters())
    projector = Projector(model).attach(optimizer)
    assert not copy.deepcopy(optimizer)._optimizer_step_post_hooks
    projector.detach()
    assert projector.attached == ()
    step(model, optimizer)
    assert worst(projector) > 1e-4
    assert projector.attach(optimizer).attached == (optimizer,)  # and again
    optimizer._optimizer_step_post_hooks.clear()
    assert projector.attached == ()


def wrapped(model: Any, kind: str) -> nn.Module:
    """`model` as torch wraps it, with longer names."""
    compiled, part = (cast(nn.Module, torch.compile(m, backend="eager")) for m in (model, model[-2]))
    return {
        "plain": model,
        "compiled": compiled,
        "averaged": AveragedModel(model),
        "parallel": nn.DataParallel(model),
        "parallel and compiled": nn.DataParallel(compiled),
        "a compiled part": nn.Sequential(*model[:-2], part, model[-1]),
    }[kind]


WRAPPERS = ["plain", "compiled", "averaged", "parallel", "parallel and compiled", "a compiled part"]


@pytest.mark.parametrize("there", WRAPPERS)
@pytest.mark.parametrize("here", ["plain", "compiled", "averaged"])
def test_a_state_goes_from_one_wrapper_to_another(here: str, there: str) -> None:
    first, second = Projector(wrapped(net(), here)), wrapped(net(), there)
    for parameter in second.parameters():
        parameter.data *= 3
    resumed = Projector(second)
    resumed.load_state_dict(first.state_dict())
    assert list(resumed.norm_ratios().values()) == pytest.approx([3.0] * 3)


def test_a_submodule_called_module_is_no_wrapper() -> None:
    model = nn.ModuleDict({"module": nn.Linear(3, 4), "weight": nn.Linear(3, 4)})
    other = nn.ModuleDict({"weight": nn.Linear(3, 4)})
    projector = Projector(model)
    projector.load_state_dict(projector.state_dict())
    with pytest.raises(ValueError, match=r"module\.weight: not there"):
        projector.project_(other)


def test_a_long_list_of_differences_is_cut() -> None:
    state = Projector(nn.Sequential(*[nn.Linear(3, 3) for _ in range(9)])).state_dict()
    with pytest.raises(ValueError, match=r"… and \d+ more$") as error:
        Projector(net()).load_state_dict(state)
    assert len(str(error.value).splitlines()) == 7


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("affine", ["joint", "decay"])
def test_an_average_of_the_weights_goes_back_to_the_original_radii(kind: str, affine: Any) -> None:
    model = traced(net())
    optimizer = sgd(model.parameters())
    projector = Projector(model, affine=affine).attach(optimizer)
    copied = copy.deepcopy(model).requires_grad_(False)
    average = wrapped(copied, kind)
    for seed in range(5):
        step(model, optimizer, seed)
    own = {name: p.detach().clone() for name, p in model.named_parameters()}
    theirs = dict(zip(own, average.parameters(), strict=True))
    for name, parameter in theirs.items():
        parameter.lerp_(own[name], 0.5)
    before = {name: p.clone() for name, p in theirs.items()}
    projector.project_(average)
    for name in projector.norm_ratios():
        assert theirs[name].norm().item() == pytest.approx(own[name].norm().item(), rel=1e-6)
        assert before[name].norm() < 0.9999 * own[name].norm()
    joint = torch.cat([theirs["1.weight"], theirs["1.bias"]])
    if affine == "joint":
        assert_close(joint.norm(), torch.tensor(8.0).sqrt())
    else:  # an average of what was pulled is not pulled again
        assert_close(joint, torch.cat([before["1.weight"], before["1.bias"]]), rtol=0, atol=0)
    assert_close(dict(model.named_parameters()), own, rtol=0, atol=0)
    assert set(projector.updates.values()) == {5}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (nn.Sequential(nn.Linear(6, 8)), r"this Sequential is no copy.*\n  3\.weight: not there"),
        (nn.Sequential(*[nn.Linear(8, 8)] * 7), r"0\.weight: \[8, 8\] there, \[8, 6\] here"),
    ],
)
def test_another_architecture_is_not_projected(other: nn.Module, words: str) -> None:
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=f"(?s){words}"):
        Projector(net()).project_(other)
    assert_close(other.state_dict(), before, rtol=0, atol=0)


# --- refusals


def with_change(change: Callable[[Any], Any]) -> Any:
    model = net()
    change(model)
    return model


def set_weight(value: Any, row: Any = slice(None)) -> Any:
    return with_change(lambda m: m.get_parameter("3.weight").data[row].fill_(value))


def wrong(**options: Any) -> Projector:
    return Projector(net(), **options)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: wrong(every=0), "every=0"),
        (lambda: wrong(every=True), "every=True"),
        (lambda: wrong(every=1.5), "every=1.5"),
        (lambda: wrong(per="rows"), r"per='rows'.*'tensor', 'row'"),
        (lambda: wrong(output="none"), "output='none'"),
        (lambda: wrong(affine="fixed"), "affine='fixed'"),
        (lambda: wrong(affine="decay", decay=0.0), "decay=0.0"),
        (lambda: wrong(affine="decay", decay=float("nan")), "decay=nan"),
        (lambda: Projector(net(), exclude=["3.weigth"]), r"'3\.weigth' matches no.*did you mean '3\.weight'"),
        (lambda: Projector(net(), exclude=["2"]), "'2' matches no parameter"),
        (lambda: Projector(net(), exclude=[nn.Linear(2, 2)]), "this Linear matches no parameter"),
        (lambda: Projector(net(), exclude=[nn.Parameter(torch.ones(2))]), "this Parameter matches no"),
        (lambda: Projector(net(), exclude=[""]), "no parameter of the model is left to project"),
        (lambda: Projector(net(), output="free"), r"never traced.*nap\.normalize_.*exclude"),
        (lambda: Projector(net(), affine="joint"), r"1\.weight.*never traced.*nap\.normalize_.*'decay'"),
        (
            lambda: Projector(net().requires_grad_(False)),
            r"0\.weight, 3\.weight.*frozen.*exclude=\['0\.weight'",
        ),
        (lambda: Projector(set_weight(0.0)), r"3\.weight: a zero norm.*exclude=\['3\.weight'\]"),
        (lambda: Projector(set_weight(0.0, 2), per="row"), r"3\.weight: a zero norm"),
        (lambda: Projector(set_weight(float("nan"), 0)), r"3\.weight: a norm that is not finite"),
        (lambda: Projector(nn.Linear(1, 3), per="row"), "weight: one entry to each norm"),
        (lambda: Projector(net().to("meta")), "no values to measure.*initialise"),
        (lambda: Projector(nn.LazyLinear(3)), "no values to measure.*initialise"),
        (lambda: Projector(traced(net()), affine="joint", exclude=["1.bias"]), r"1\.weight.*move alone"),
        (lambda: Projector(traced(net()), affine="joint", exclude=["1.weight"]), r"1\.bias.*move alone"),
        (
            lambda: Projector(
                traced(with_change(lambda m: [p.data.zero_() for p in m[1].parameters()])), affine="joint"
            ),
            r"1\.weight, 1\.bias: a joint norm that is zero",
        ),
    ],
)
def test_refusals_name_the_thing_the_reason_and_the_way_out(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_a_stacked_weight_without_a_row_axis_is_refused_per_row_only() -> None:
    model = zoo()
    table = WeightTable({"experts": Weight("experts", Role.WEIGHT, stacked=1)})
    setattr(model, PLAN_ATTRIBUTE, Plan(weights=table))
    Projector(model)
    with pytest.raises(ValueError, match="experts: the axis of its rows is not known"):
        Projector(model, per="row")


def test_optimizers_that_would_not_do_are_refused() -> None:
    model = net()
    projector, optimizer = Projector(model), sgd(model.parameters())
    with pytest.raises(ValueError, match="holds no parameter of the plan; build it from this very model"):
        projector.attach(sgd(net().parameters()))
    with pytest.raises(ValueError, match=r"6\.weight: held by no attached optimizer.*attach\(a, b\)"):
        projector.attach(sgd([model.get_parameter("0.weight"), model.get_parameter("3.weight")]))
    with pytest.raises(ValueError, match=r"object is no torch\.optim\.Optimizer.*project_"):
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


@pytest.mark.parametrize("axis", [0, 1])
def test_an_output_layer_that_starts_near_zero_needs_a_choice(axis: int) -> None:
    def small(gain: float) -> Any:
        """A head of 4096 entries that are `gain` times 1/√fan_in, fan_in being 1024."""
        model = nn.Module()
        shape = (4, 1024) if axis == 0 else (1024, 4)
        model.register_parameter("hidden", nn.Parameter(1e-9 * torch.randn(3, 3)))  # only outputs count
        model.register_parameter("head", nn.Parameter(torch.full(shape, gain / 32)))
        rows = {
            "hidden": Weight("hidden", Role.SCALE_INVARIANT),
            "head": Weight("head", Role.OUTPUT, out_axis=axis),
        }
        setattr(model, PLAN_ATTRIBUTE, Plan(weights=WeightTable(rows)))
        return model

    words = r"^head: an output layer that starts near zero.*output='free' or exclude=\['head'\].*'project'"
    with pytest.raises(ValueError, match=words):
        Projector(small(0.029))
    Projector(small(0.031))
    Projector(small(0.01), exclude=["head"])
    assert Projector(small(0.01), output="free").plan.names("project") == ["hidden"]
    meant = Projector(small(0.01), output="project")
    assert meant.plan.names("project") == ["hidden", "head"]
    Projector(small(1.0)).load_state_dict(meant.state_dict())  # the same setting, chosen or by default


def test_a_joint_pair_must_not_be_split_between_optimizers() -> None:
    model = traced(net())
    offsets = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    with pytest.raises(ValueError, match=r"1\.weight, 1\.bias: move together.*holds only one"):
        Projector(model, affine="joint").attach(sgd(offsets), sgd(others))


# --- sharded weights


def _sharded_run(rank: int, port: int) -> None:
    from torch.distributed import destroy_process_group, init_device_mesh, init_process_group
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    init_process_group("gloo", rank=rank, world_size=2)
    cases: list[dict[str, Any]] = [{"affine": "joint"}, {"per": "row", "affine": "decay"}]
    for options in cases:
        runs = []
        for shard in (False, True):
            model: Any = traced(net())
            if shard:
                fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
            optimizer = sgd(model.parameters())
            projector = Projector(model, **options).attach(optimizer)
            for seed in range(3):
                step(model, optimizer, seed)
                assert worst(projector) <= 1e-6
            runs.append({k: v.full_tensor() if shard else v for k, v in model.state_dict().items()})
        assert_close(runs[1], runs[0])
    destroy_process_group()


@pytest.mark.slow
def test_sharded_weights_come_out_as_on_one_process() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(_sharded_run, args=(port,), nprocs=2)
