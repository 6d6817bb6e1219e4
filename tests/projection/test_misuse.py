"""Training that runs and is not NaP is warned of once, with a way out; healthy uses are silent."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import nap
from nap.projection.misuse import PATIENCE, MisuseWarning
from nap.projection.watch import CHECK_EVERY

X = torch.linspace(-2, 2, 24).sin().reshape(3, 8)


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def converted() -> nn.Sequential:
    model = plain()
    nap.normalize_(model, X)
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, updates: int = 1) -> None:
    for _ in range(updates):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()


# --- norms


def test_a_model_without_norms_is_warned_of() -> None:
    model = plain()
    with pytest.warns(MisuseWarning, match=r"0.weight, 2.weight: .*Sequential has no norms.*nap.normalize_"):
        nap.Projector(model).attach(torch.optim.SGD(model.parameters()))


def test_norms_of_its_own_and_a_single_weight_are_silent() -> None:
    own = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    for model in (converted(), own, nn.Linear(8, 3)):
        nap.Projector(model).attach(torch.optim.SGD(model.parameters()))


# --- weight decay

ADAM: Any = torch.optim.Adam


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda p: torch.optim.AdamW(p, weight_decay=0.1), "shrinks what is put back"),
        (lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=5e-4), "shrinks what is put back"),
        (lambda p: ADAM(p, weight_decay=1e-4), "in Adam it goes through the moments"),
        (lambda p: torch.optim.RMSprop(p, weight_decay=1e-4), "in RMSprop it goes through the moments"),
    ],
)
def test_decay_of_projected_weights_is_warned_of(make: Callable[[Any], Any], match: str) -> None:
    model = converted()
    with pytest.warns(MisuseWarning, match=rf"0.weight, 2.weight: .*{match}.*param_groups"):
        nap.Projector(model).attach(make(model.parameters()))


def test_decay_under_relative_steps_takes_its_share_of_them_and_under_a_brake_it_works() -> None:
    choices: Any = (("free", "put back at once"), ("relative", "takes its share of each step"))
    for update, match in choices:
        model = converted()
        with pytest.warns(MisuseWarning, match=match):
            nap.Projector(model, update=update).attach(
                torch.optim.AdamW(model.parameters(), weight_decay=0.1)
            )
    model = converted()
    nap.Projector(model, brake=0.9).attach(torch.optim.AdamW(model.parameters(), weight_decay=0.1))


def test_decay_of_other_parameters_and_an_untouched_default_are_silent() -> None:
    model = converted()
    projector = nap.Projector(model, output="free")
    groups = projector.param_groups(weight_decay=0.1, lr=0.01)
    projector.attach(torch.optim.AdamW(groups))
    by_decay = {group["weight_decay"]: {id(p) for p in group["params"]} for group in groups}
    assert by_decay[0.1] == {id(model[2].weight)}
    assert by_decay[0.0] == {id(p) for p in model.parameters()} - by_decay[0.1]
    assert all(group["lr"] == 0.01 for group in groups)
    for make in (torch.optim.AdamW, torch.optim.Adam):  # AdamW decays by .01 unless it is told otherwise
        model = converted()
        nap.Projector(model).attach(make(model.parameters()))


# --- precision and averages


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_warned_of(dtype: torch.dtype) -> None:
    model = converted().to(dtype)
    kind = str(dtype).removeprefix("torch.")
    with pytest.warns(MisuseWarning, match=rf"0.weight \({kind}\).*float32.*autocast"):
        nap.Projector(model).attach(torch.optim.SGD(model.parameters()))


class ScheduleFree(torch.optim.SGD):
    """As schedulefree's optimizers tell what is in the model: the weights to train, or their average."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        for group in self.param_groups:
            group["train_mode"] = False

    def eval(self) -> None:
        raise AssertionError("only its being there counts")


def test_schedule_free_optimizers_are_warned_of() -> None:
    model = converted()
    with pytest.warns(MisuseWarning, match=r"ScheduleFree keeps a second set.*without optimizer.eval\(\)"):
        nap.Projector(model).attach(ScheduleFree(model.parameters()))


# --- never attached


def test_training_beside_a_projector_is_warned_of_once() -> None:
    model = converted()
    projector = nap.Projector(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, PATIENCE)
    with pytest.warns(MisuseWarning, match=r"0.weight: moved .* projector.attach\(optimizer\)") as told:
        train(model, optimizer, PATIENCE + 5)
    assert len(told) == 1
    assert not projector.attached


def used_by_hand(model: nn.Module) -> Any:
    projector = nap.Projector(model)
    projector.project_()
    return projector


def thrown_away(model: nn.Module) -> None:
    print(nap.Projector(model).plan)


def attached(model: nn.Module) -> Any:
    return nap.Projector(model).attach(torch.optim.SGD(model.parameters(), lr=0.01))


def detached(model: nn.Module) -> Any:
    projector = attached(model)
    projector.detach()
    return projector


@pytest.mark.parametrize("use", [used_by_hand, thrown_away, attached, detached, copy.deepcopy])
def test_a_projector_that_is_used_or_gone_is_silent(use: Callable[[nn.Module], Any]) -> None:
    model = converted()
    kept = use(model)
    gc.collect()
    [optimizer] = getattr(kept, "attached", ()) or [torch.optim.SGD(model.parameters(), lr=0.01)]
    train(model, optimizer, PATIENCE + 5)


def test_evaluation_and_frozen_weights_are_silent() -> None:
    model = converted()
    projector = nap.Projector(model)
    for _ in range(PATIENCE + 5):
        model(X).sum().backward()  # gradients, and nothing moves
    assert projector.norm_ratios()["0.weight"] == pytest.approx(1)


# --- a model that changed after it was planned


def fused(model: Any) -> nn.Module:
    model[0] = nn.utils.fusion.fuse_conv_bn_eval(model[0].eval(), model[1].eval())
    model[1] = nn.Identity()
    return model


def with_parametrization(model: Any) -> nn.Module:
    nn.utils.parametrizations.weight_norm(model[0])
    return model


def with_more(model: Any) -> nn.Module:
    model.append(nn.Linear(3, 3))
    return model


def with_another_layer(model: Any) -> nn.Module:
    model[0] = nn.Linear(8, 16)
    return model


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (with_parametrization, r"0.parametrizations.weight.original0 \(new\).*0.weight \(gone\)"),
        (with_more, r"3.weight \(new\), 3.bias \(new\)"),
        (with_another_layer, r"0.bias \(new\), 0.nap_norm.weight \(gone\)"),
    ],
)
def test_changes_after_planning_are_warned_of(change: Callable[[Any], nn.Module], names: str) -> None:
    model = change(converted())
    with pytest.warns(MisuseWarning, match=f"{names}.*changed after nap.normalize_.*call nap.normalize_"):
        nap.Projector(model, exclude=[p for n, p in model.named_parameters() if "original0" in n])


def test_folding_batch_norm_into_a_convolution_is_warned_of() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    nap.normalize_(model, torch.randn(2, 3, 8, 8))
    with pytest.warns(MisuseWarning, match=r"0.bias \(new\).*1.weight \(gone\)"):
        nap.Projector(fused(model))


def test_peft_after_planning_is_warned_of() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(converted(), peft.LoraConfig(target_modules=["0"], r=2))
    with pytest.warns(MisuseWarning, match=r"lora_A.default.weight \(new\).*changed after nap.normalize_"):
        nap.Projector(model)


def wrapped(model: nn.Module) -> nn.Module:
    return nn.Sequential(model, nn.Linear(3, 2))  # a part was converted; what is outside was never planned


@pytest.mark.parametrize(
    "change",
    [copy.deepcopy, wrapped, lambda m: torch.compile(m, backend="eager"), lambda m: m.requires_grad_(False)],
)
def test_wrappers_and_copies_are_silent(change: Callable[[nn.Module], Any]) -> None:
    nap.Projector(change(converted()))


def test_converting_a_part_and_then_the_whole_is_silent() -> None:
    whole = wrapped(converted())
    nap.normalize_(whole, X)
    nap.Projector(whole)
    parts = nn.Sequential(nn.ReLU(), plain())
    nap.normalize_(parts[1], X)
    nap.normalize_(parts, X)
    nap.Projector(parts)


def test_a_warning_can_be_turned_off_by_its_category() -> None:
    model = plain()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MisuseWarning)
        nap.Projector(model).attach(torch.optim.Adam(model.parameters(), weight_decay=0.1))


def test_a_projector_says_what_it_does() -> None:
    model = converted()
    projector = nap.Projector(model, output="free")
    assert repr(projector) == "Projector of Sequential: 1 projected, 4 left free; not attached"
    projector.attach(torch.optim.Adam(model.parameters()))
    assert repr(projector).endswith("; attached to Adam")


# --- a model that changes under its optimizer


def with_projector(model: nn.Module) -> tuple[nap.Projector, torch.optim.Optimizer]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return nap.Projector(model).attach(optimizer), optimizer


def replace_head(model: nn.Sequential) -> None:
    model[2] = nn.Linear(16, 3)


def load_by_assigning(model: nn.Sequential) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


def fuse(model: nn.Sequential) -> None:
    before: Any = model[2]
    fused = nn.Linear(16, 3, bias=False)
    fused.weight.data.copy_(2 * before.weight.data)
    model[2] = fused


def add_an_adapter(model: nn.Sequential) -> None:
    model[2].requires_grad_(False)
    model[2] = nn.Sequential(model[2], nn.Linear(3, 3))


CHANGES: Any = [
    (replace_head, r"2\.weight \(replaced\)"),
    (load_by_assigning, r"0\.weight \(replaced\).*2\.weight \(replaced\)"),
    (fuse, r"2\.weight \(replaced\)"),
    (add_an_adapter, r"2\.1\.weight \(new\)"),
]


@pytest.mark.parametrize(("change", "match"), CHANGES)
def test_a_model_that_changes_while_it_trains_is_warned_of_once(change: Any, match: str) -> None:
    model = converted()
    projector, optimizer = with_projector(model)
    train(model, optimizer, 3)
    change(model)
    with pytest.warns(MisuseWarning, match=match + ".*then build the optimizer and nap.Projector") as caught:
        train(model, optimizer, 2 * CHECK_EVERY)
    assert len(caught) == 1
    assert caught[0].filename == __file__  # the line of optimizer.step
    projector.state_dict()  # silent: it was said


def test_a_changed_model_is_noticed_when_it_is_saved() -> None:
    model = converted()
    projector, optimizer = with_projector(model)
    train(model, optimizer, 3)
    replace_head(model)
    with pytest.warns(MisuseWarning, match=r"2\.weight \(replaced\)"):
        projector.state_dict()


def rename(model: nn.Sequential) -> None:
    model[0] = nn.Sequential(model[0])


def move(model: nn.Sequential) -> None:
    model.double().float()


def swap(model: nn.Sequential) -> None:
    """The way of torch.__future__.set_swap_module_params_on_conversion, and of torchao."""
    for parameter in model.parameters():
        parameter.grad = None
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().clone()))


def load(model: nn.Sequential) -> None:
    model.load_state_dict(converted().state_dict())


def freeze(model: nn.Sequential) -> None:
    model[0].requires_grad_(False)


def add_a_frozen_copy(model: nn.Sequential) -> None:
    model.register_module("average", copy.deepcopy(model[2]).requires_grad_(False))
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [rename, move, swap, load, freeze, add_a_frozen_copy])
def test_changes_that_keep_the_trained_tensors_are_silent(change: Any) -> None:
    model = converted()
    projector, optimizer = with_projector(model)
    change(model)
    train(model, optimizer, 2 * CHECK_EVERY)
    projector.state_dict()


def test_two_optimizers_are_silent() -> None:
    model = converted()
    one, other = (torch.optim.Adam(model[place].parameters(), lr=1e-3) for place in (0, 2))
    projector = nap.Projector(model).attach(one, other)
    for _ in range(2 * CHECK_EVERY):
        one.zero_grad()
        other.zero_grad()
        model(X).square().mean().backward()
        one.step()
        other.step()
    projector.state_dict()
