"""The state of a `Projector`: moves, copies, resumption, wrappers and averages of the weights."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.testing import assert_close

from nap.projection.project import Projector
from projection_nets import F64, net, sgd, step, traced, worst


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


def test_the_plan_of_a_loaded_state_prints_the_radii_that_are_kept() -> None:
    model = net()
    saved = Projector(model).state_dict()
    for parameter in model.parameters():
        parameter.data *= 3
    projector = Projector(model)
    projector.load_state_dict(saved)
    radii = {row.name: row.radius for row in projector.plan.rows if row.radius is not None}
    assert radii == pytest.approx({name: saved["radii"][name].norm().item() for name in radii})
