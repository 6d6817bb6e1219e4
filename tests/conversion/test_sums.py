"""residual="sum": one norm on what enters a BatchNorm or an activation, instead of one on each branch."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from fused_models import batch_norms, compared
from nap.conversion.placement import Plan
from nap.conversion.verification import relative_change
from nap.lab.loops.supervised.settings import NAP
from nap.lab.loops.supervised.trainer import build
from nap.lab.models.resnet import ResNetV2
from nap.lab.models.vgg import vgg
from nap.norms.norm import Norm
from zoo import convolutional, multilayer, residual
from zoo.entry import Entry
from zoo.judge import judge


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def images() -> Tensor:
    return torch.randn(4, 3, 16, 16, dtype=torch.float64)


def resnet(**options: Any) -> nn.Module:
    """Two stages of two blocks, after a stem with a pool."""
    model = ResNetV2(3, 5, blocks=(2, 2), width=4).double()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 2.0)
            nn.init.normal_(norm.bias)
    nap.normalize_(model, images(), residual="sum", **options)
    return model


def same_plans(model: nn.Module, x: Any) -> bool:
    return nap.plan(model, x, residual="sum").placements == nap.plan(model, x).placements


def carriers(model: nn.Module) -> set[str]:
    return {n.rpartition(".")[0] for n, m in model.named_modules() if isinstance(m, Norm)}


INNER = {f"blocks.{block}.conv{layer}" for block in range(4) for layer in (1, 2)}
STREAM = {f"blocks.{block}.norm1" for block in range(4)} | {"norm"}


# -- ResNet v2: BatchNorm on the residual stream ---------------------------------------------------


def test_each_batch_norm_has_one_norm_in_front_of_it_and_the_branches_have_none():
    model = resnet()
    assert carriers(model) == INNER | STREAM
    assert len(INNER | STREAM) == sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert all(m.bias is None for m in model.modules() if isinstance(m, Norm))
    assert all(model.get_submodule(name).nap_norm.layout == "sample" for name in STREAM)


def test_the_plan_says_which_layers_are_in_a_sum():
    plan = nap.plan(ResNetV2(3, 5, blocks=(3,), width=4).double(), images(), residual="sum")
    reasons = {p.module: p.reason for p in plan.placements if p.action == "normalise input"}
    assert reasons == {
        "blocks.0.norm1": "is entered by stem",  # behind the pool, where BatchNorm is
        "blocks.1.norm1": "is entered by the sum of blocks.0.shortcut and blocks.0.conv3",
        "blocks.2.norm1": "is entered by the sum of blocks.0.shortcut, blocks.0.conv3 and 1 more",
        "norm": "is entered by the sum of blocks.0.shortcut, blocks.0.conv3 and 2 more",
    }


def test_planning_again_finds_nothing_and_the_roles_are_verified():
    model = resnet()
    assert nap.plan(model, images(), residual="sum").placements == ()
    assert nap.plan(model, images()).placements == ()
    assert nap.normalize_(model, images(), residual="sum").placements == ()
    assert nap.verify(model, images()).scale_invariant == len(INNER)
    role = {row.name.removesuffix(".weight"): row.role for row in nap.weight_groups(model).values()}
    assert {name for name in role if role[name] is nap.Role.SCALE_INVARIANT} == INNER
    joint = {f"blocks.{block}.conv3" for block in range(4)} | {f"blocks.{block}.shortcut" for block in (0, 2)}
    assert {name for name in role if role[name] is nap.Role.JOINT} == joint
    assert role["stem"] is nap.Role.NORMALISED


def test_weights_of_one_stream_are_scale_invariant_together_and_not_apart():
    model = resnet(eps=0.0).eval()
    streams = [["stem"], *([f"blocks.{b}.{n}" for b, n in _stage(first)] for first in (0, 2))]
    assert max(changes(model, stream) for stream in streams) < 1e-12
    assert changes(model, ["blocks.0.conv3"]) > 1e-2


def _stage(first: int) -> list[tuple[int, str]]:
    return [(first, "shortcut"), (first, "conv3"), (first + 1, "conv3")]


@torch.no_grad()
def changes(model: nn.Module, layers: list[str]) -> float:
    """How much three times these layers' weights change the output."""
    twin, x = copy.deepcopy(model), images()
    for layer in layers:
        twin.get_parameter(f"{layer}.weight").mul_(3.0)
    return relative_change([model(x)], [twin(x)])


def test_with_an_eps_they_are_so_up_to_it():
    everything = ["stem", *(f"blocks.{b}.{n}" for first in (0, 2) for b, n in _stage(first))]
    assert 1e-12 < changes(resnet().eval(), everything) < 1e-3


def test_projection_holds_the_weights_through_training():
    model = resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    projector = nap.Projector(model).attach(optimizer)
    before = {n: p.norm().item() for n, p in model.named_parameters() if p.ndim == 4}
    for _ in range(3):
        optimizer.zero_grad()
        model(images()).square().mean().backward()
        optimizer.step()
    assert {n: p.norm().item() for n, p in model.named_parameters() if p.ndim == 4} == pytest.approx(before)
    assert max(abs(ratio - 1) for ratio in projector.norm_ratios().values()) < 1e-6


# -- fused to their BatchNorms --------------------------------------------------------------------


@pytest.mark.parametrize(("eps", "affine"), [("relative", "scale_offset"), (1e-5, "none")])
def test_fused_it_is_the_same_function_with_the_same_gradients_and_statistics(eps, affine):
    plain = resnet(eps=eps, affine=affine)
    fused = copy.deepcopy(plain)
    pairs = nap.fuse_batch_norms_(fused, images())
    assert {name: norm for name, norm in pairs.items() if name == norm} == {name: name for name in STREAM}
    assert pairs.keys() == INNER | STREAM
    assert nap.fuse_batch_norms_(fused, images()) == {}
    # compiled once: tracing takes seconds
    model: Any = torch.compile(fused, backend="aot_eager", fullgraph=True) if affine == "none" else fused
    for _ in range(2):
        compared(model, plain, images())
    model.eval(), plain.eval()
    compared(model, plain, images())
    assert nap.verify(fused, images()).scale_invariant == nap.verify(plain, images()).scale_invariant


def test_no_batch_norm_is_computed_by_itself():
    model = resnet()
    assert batch_norms(model, images()) == 13
    nap.fuse_batch_norms_(model, images())
    assert batch_norms(model, images()) == 0


def test_a_batch_norm_that_is_exchanged_loses_its_norm_and_verify_says_so():
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(resnet())  # torch's own, which drops hooks
    with pytest.raises(ValueError, match=r"the norms of blocks\.0\.norm1, .* no longer run"):
        nap.verify(synced, images())


def test_the_arms_of_the_image_experiments_fuse_every_batch_norm():
    model, _ = build(NAP, lambda: ResNetV2(3, 5, blocks=(2, 1), width=4), images().float())
    assert sum(type(m) is nn.BatchNorm2d for m in model.modules()) == 0
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == 10
    net = vgg((3, 16, 16), 5, channels=(4, 0, 4), hidden=(8,), batch_norm=True)
    assert same_plans(net, images().float())


# -- sums in front of activations ------------------------------------------------------------------


class Stream(nn.Module):
    """A residual MLP that activates its stream: x + down(relu(up(relu(x))))."""

    def __init__(self, acts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.embed, self.head, self.acts = nn.Linear(4, 8), nn.Linear(8, 3), nn.ModuleList(acts)
        self.up, self.down = (nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for act, up, down in zip(self.acts[:2], self.up, self.down, strict=True):
            x = x + down(F.gelu(up(act(x))))
        return self.head(self.acts[2](x))


def vectors() -> Tensor:
    return torch.randn(5, 4)


def test_activation_modules_carry_the_norm_of_what_enters_them():
    model = Stream([nn.ReLU(), nn.Tanh(), nn.GELU()])
    plan = nap.normalize_(model, vectors(), residual="sum")
    assert {p.module: p.action for p in plan.placements} == {
        "up.0": "normalise output",
        "up.1": "normalise output",
        **{f"acts.{i}": "normalise input" for i in range(3)},
    }
    assert model.embed.bias is not None  # no norm follows it that could stand in for it
    assert all(norm.bias is not None for norm in _norms(model))
    assert plan.weights["embed.weight"].role is nap.Role.JOINT
    nap.verify(model, vectors())


def _norms(model: nn.Module) -> list[Norm]:
    return [module for module in model.modules() if isinstance(module, Norm)]


def test_an_activation_that_is_called_thrice_leaves_the_norms_on_the_branches():
    plan = nap.plan(Stream([nn.ReLU()] * 3), vectors(), residual="sum")
    found = {p.module: p.reason for p in plan.placements}
    assert found.keys() == {"embed", "up.0", "up.1", "down.0", "down.1"}
    assert found["down.0"] == "enters relu in a sum (no norm can hang there: acts.0 is called 3 times)"


class Sum(nn.Module):
    """φ(a1 + a2), as in ResNet v1 without BatchNorm."""

    def __init__(self, act: nn.Module, *, channels: bool = False, also_returned: bool = False) -> None:
        super().__init__()
        layer: Any = (lambda n, m: nn.Conv2d(n, m, 3, padding=1)) if channels else nn.Linear
        self.one, self.two, self.act, self.head = layer(4, 8), layer(4, 8), act, layer(8, 3)
        self.also_returned = also_returned

    def forward(self, x: Tensor) -> Any:
        y = self.one(x) + self.two(x)
        z = self.head(self.act(y))
        return (z, y) if self.also_returned else z


class Functional(Sum):
    """The sum goes through a module that is nothing but a place, and a function."""

    def forward(self, x: Tensor) -> Any:
        y = self.act(self.one(x) + self.two(x))
        z = self.head(F.relu(y))
        return (z, y) if self.also_returned else z


def placed(model: nn.Module, x: Tensor, **options: Any) -> dict[str, str]:
    nap.normalize_(model, x, residual="sum", **options)
    nap.verify(model, x)
    return {name: type(model.get_submodule(name)).__name__ for name in sorted(carriers(model))}


@pytest.mark.parametrize("channels", [False, True])
def test_a_sum_of_two_layers_gets_one_norm(channels):
    x = torch.randn(5, 4, 6, 6) if channels else vectors()
    model = Sum(nn.ReLU(), channels=channels)
    assert placed(model, x) == {"act": "ReLU"}
    (norm,) = _norms(model)
    assert norm.layout == ("sample" if channels else "features")


def test_an_identity_in_front_of_a_function_is_a_place():
    assert placed(Functional(nn.Identity()), vectors()) == {"act": "Identity"}
    assert placed(Functional(nn.Dropout(0.0)), vectors()) == {"one": "Linear", "two": "Linear"}


def test_a_sum_that_is_also_returned_stays_as_it_is():
    assert placed(Sum(nn.ReLU(), also_returned=True), vectors()) == {"act": "ReLU"}
    with pytest.raises(ValueError, match="also returned as an output"):
        nap.normalize_(Functional(nn.Identity(), also_returned=True), vectors(), residual="sum")


class AddRelu(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.relu(x + y)


class Apart(Sum):
    def forward(self, x: Tensor) -> Any:
        return self.head(self.act(self.one(x), self.two(x)))


def test_a_module_that_adds_by_itself_is_given_no_sum():
    plan = nap.plan(Apart(AddRelu()), vectors(), residual="sum")
    assert [p.module for p in plan.placements] == ["one", "two"]
    assert plan.placements[0].reason == "enters relu in a sum (no norm can hang there: relu is no module)"


def test_an_activation_in_place_leaves_the_norms_on_the_branches():
    plan = nap.plan(Sum(nn.ReLU(inplace=True)), vectors(), residual="sum")
    assert [p.module for p in plan.placements] == ["one", "two"]
    assert plan.placements[0].reason == "enters relu in a sum (no norm can hang there: act acts in place)"


def test_functions_are_done_by_branch():
    plan = nap.plan(Functional(nn.Dropout(0.0)), vectors(), residual="sum")
    assert {p.reason for p in plan.placements} == {
        "enters relu in a sum (no norm can hang there: relu is no module)"
    }


@pytest.mark.parametrize(
    ("layer", "norm", "shape", "layout"),
    [
        (nn.Linear, nn.BatchNorm1d, (5, 4), "features"),
        (lambda n, m: nn.Conv1d(n, m, 3, padding=1), nn.BatchNorm1d, (5, 4, 6), "channels"),
        (lambda n, m: nn.Conv2d(n, m, 1), nn.BatchNorm2d, (5, 4, 3, 3), "sample"),
        (lambda n, m: nn.Conv3d(n, m, 1), nn.BatchNorm3d, (5, 4, 3, 3, 3), "sample"),
    ],
)
@pytest.mark.parametrize("norms", ["layer", "rms"])
def test_every_batch_norm_can_carry_the_norm_of_a_sum(layer, norm, shape, layout, norms):
    model = Sum(nn.Sequential(norm(8), nn.ReLU()))
    model.one, model.two, model.head = layer(4, 8), layer(4, 8), layer(8, 3)
    x = torch.randn(shape)
    assert placed(model, x, norm=norms) == {"act.0": norm.__name__}
    (found,) = _norms(model)
    assert (found.layout, found.bias, found.centre) == (layout, None, norms == "layer")
    assert found(x.new_ones(2, 8, *shape[2:])).shape == (2, 8, *shape[2:])


def test_one_number_alone_is_left_as_it_is():
    model = Sum(nn.ReLU())
    model.one, model.two, model.head = nn.Linear(4, 1), nn.Linear(4, 1), nn.Linear(1, 3)
    plan = nap.normalize_(model, vectors(), residual="sum")
    assert plan.placements == ()
    assert [note.name for note in plan.left_alone] == ["act", "one.weight", "two.weight"]
    assert plan.left_alone[0].reason.startswith("it is entered by the sum of one and two with one feature")


# -- options ---------------------------------------------------------------------------------------


def test_what_is_excluded_is_left_alone():
    def found(*names: str) -> list[str]:
        plan = nap.plan(Sum(nn.ReLU()), vectors(), residual="sum", exclude=names)
        return [p.module for p in plan.placements]

    assert found() == ["act"]
    assert found("act") == ["one", "two"]
    assert found("two") == ["one"]  # what is left of the sum is one layer's


def test_a_plan_on_sums_is_kept_as_json_and_checked_against_the_model():
    model = ResNetV2(3, 5, blocks=(1, 1), width=4)
    plan = nap.plan(model, images().float(), residual="sum")
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.options.residual == "sum"
    nap.normalize_(model, again)
    with pytest.raises(ValueError, match="already carries a norm"):
        nap.normalize_(model, again)
    with pytest.raises(ValueError, match=r"'blocks\.0\.norm1' to have 4 features, not 8"):
        nap.normalize_(ResNetV2(3, 5, blocks=(1, 1), width=8), again)


def test_a_wrong_choice_is_an_error():
    with pytest.raises(ValueError, match="residual='both' is not a choice; use one of branch, sum"):
        nap.plan(Sum(nn.ReLU()), vectors(), residual="both")  # type: ignore[arg-type]


def test_batch_norm_that_is_kept_is_the_norm_of_the_sum():
    model = ResNetV2(3, 5, blocks=(1,))
    assert nap.plan(model, images().float(), residual="sum", batch_norm="keep").placements == ()


# -- other networks --------------------------------------------------------------------------------

ENTRIES = [*residual.FAMILY, *convolutional.FAMILY, *multilayer.FAMILY]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_zoo_is_converted_without_fault(entry: Entry):
    row = judge(replace(entry, options={**entry.options, "residual": "sum"}))
    assert row.expected, f"{row.verdict}: " + "\n".join(row.problems)


def test_where_each_batch_norm_follows_its_layer_nothing_changes():
    (entry,) = (entry for entry in residual.FAMILY if entry.name == "ResNet v1, BatchNorm")
    model, args, _ = entry.build()
    assert same_plans(model, args)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_so_it_is_for_torchvision(name):
    models = pytest.importorskip("torchvision.models")
    assert same_plans(getattr(models, name)(), torch.randn(2, 3, 64, 64))


def test_timms_resnet_v2_has_its_norms_on_its_stream():
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnetv2_50", num_classes=10)
    found = placed(model, torch.randn(2, 3, 64, 64))
    assert {"stages.0.blocks.1.norm1", "norm"} < found.keys()
    assert not any(name.endswith(("conv3", "downsample.conv")) for name in found)
