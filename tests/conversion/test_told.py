"""Parts that cannot be looked into: what callers say of them; what is compiled, scripted, recomputed."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import nap

X = torch.linspace(-2, 2, 24).sin().reshape(3, 8)


CLOSED = torch.jit.CompilationUnit("""
def swish(x):
    return x * torch.sigmoid(x)

def doubled(x):
    return x * 2.0

def mul(x):
    return torch.relu(x)
""")
swish, doubled = CLOSED.swish, CLOSED.doubled  # scripted functions whose Python is not there


@torch.jit.script
def readable(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def scripted(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(module)


class Net(nn.Module):
    def __init__(self, act, layer: nn.Module | None = None):
        super().__init__()
        self.layer, self.act, self.head = layer or nn.Linear(8, 6), act, nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.layer(x)))


class Mapped(nn.Module):
    """What it computes is not seen, as in compiled extensions."""

    def forward(self, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return torch.relu(x)


def names(plan: nap.Plan) -> list[str]:
    return [placement.module for placement in plan.placements]


@pytest.mark.parametrize("act", [swish, torch.special.erfcx], ids=["scripted", "unknown"])
def test_a_refused_function_is_named_and_can_be_told(act):
    (problem,) = nap.plan(Net(act), X).problems
    assert f"activations=[{problem.name!r}] or linear=[{problem.name!r}]" in problem.way_out
    for told in (problem.name, act):
        model = Net(act)
        plan = nap.normalize_(model, X, activations=[told])
        assert names(plan) == ["layer"]
        assert plan.options.activations == (problem.name,)
        assert nap.Plan.from_json(plan.to_json()) == plan
        assert nap.verify(model, X).norms == 1


def test_a_function_of_others_is_not_taken_for_one_of_torch_by_its_name():
    assert [p.name for p in nap.plan(Net(CLOSED.mul), X).problems] == ["script.mul"]
    library = torch.library.Library("nap_tests", "DEF")
    library.define("mul(Tensor x) -> Tensor")
    library.impl("mul", torch.relu, "CompositeImplicitAutograd")
    for operation in (torch.ops.nap_tests.mul, torch.ops.nap_tests.mul.default):
        assert [p.name for p in nap.plan(Net(operation), X).problems] == ["nap_tests.mul"]


def test_what_is_said_to_be_linear_carries_on():
    assert names(nap.plan(Net(doubled), X, linear=[doubled])) == []
    assert names(nap.plan(nn.Sequential(Net(doubled), nn.ReLU()), X, linear=["doubled"])) == ["0.head"]


def test_a_scripted_function_is_read_as_it_was_written():
    model = Net(readable)
    (placement,) = nap.normalize_(model, X).placements
    assert (placement.module, placement.reason) == ("layer", "enters sigmoid")
    assert nap.verify(model, X).norms == 1


@pytest.mark.parametrize("leave", [lambda h: h.detach().numpy(), lambda h: h.tolist()], ids=["numpy", "list"])
def test_a_hidden_result_that_leaves_torch_is_refused(leave):
    def through(h: Tensor) -> Tensor:
        return torch.tensor(leave(h), dtype=torch.float32).relu()

    (problem,) = nap.plan(Net(through), X).problems
    assert problem.name in ("numpy", "tolist")
    assert names(nap.plan(Net(through), X, activations=[problem.name])) == ["layer"]


def test_a_hidden_result_that_is_read_as_a_number_is_noted():
    plan = nap.plan(Net(lambda h: h * h.max().item()), X)
    assert [(n.name, "as a number" in n.reason) for n in plan.left_alone] == [("layer", True)]


def test_scripted_modules_can_be_told():
    from torch.nn.modules import module as torch_module

    model = Net(scripted(nn.GELU()))
    with pytest.raises(ValueError, match=r"act is a ScriptModule.*activations=\['act'\]"):
        nap.plan(model, X)
    assert names(nap.normalize_(model, X, activations=[model.act])) == ["layer"]
    hooks = [vars(torch_module)[f"_global_forward_{kind}hooks"] for kind in ("", "pre_")]
    assert hooks == [{}, {}], "hooks on all modules must not stay"


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = scripted(nn.Linear(8, 6, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_scripted_layer_gets_its_norm_around_it():
    model = Net(nn.ReLU(), Wrapped())
    plan = nap.normalize_(model, X, linear=[Wrapped])
    assert names(plan) == ["layer"]
    assert plan.weights["layer.inside.weight"].role is nap.Role.SCALE_INVARIANT
    nap.verify(model, X)
    bare = Net(nn.ReLU(), scripted(nn.Linear(8, 6)))
    assert [p.name for p in nap.plan(bare, X, linear=["layer"]).problems] == ["layer"]


def test_weights_inside_what_is_called_an_activation_are_named():
    model = Net(scripted(nn.Sequential(nn.Linear(6, 6), nn.ReLU())))
    assert [p.name for p in nap.plan(model, X, activations=["act"]).problems] == ["act.0.weight"]


def test_what_is_not_seen_inside_a_module_can_be_told():
    assert "unseen origin" in nap.plan(Net(Mapped()), X).problems[0].reason
    assert names(nap.plan(Net(Mapped()), X, activations=[Mapped])) == ["layer"]


def test_a_name_that_nothing_goes_by_is_refused():
    with pytest.raises(ValueError, match=r"'Maped', given as .* did you mean 'Mapped'"):
        nap.plan(Net(Mapped()), X, activations=["Maped"])
    with pytest.raises(ValueError, match="is no part of the model"):
        nap.plan(Net(Mapped()), X, activations=[nn.GELU()])
    with pytest.raises(ValueError, match=r"activations takes a list of names"):
        nap.plan(Net(Mapped()), X, activations="act")


@pytest.mark.parametrize("act", [nn.GELU(), lambda x: x * torch.sigmoid(x)], ids=["module", "function"])
def test_a_compiled_activation_is_read_as_it_is_written(act):
    assert names(nap.plan(Net(torch.compile(act, backend="eager")), X)) == ["layer"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = (q @ k.mT / 2).masked_fill(~mask, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool):
        super().__init__()
        self.attention, self.up, self.head, self.reentrant = (
            Attention(),
            nn.Linear(8, 6),
            nn.Linear(6, 2),
            reentrant,
        )

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(5, 5, dtype=torch.bool).tril()
        x = x + checkpoint(self.attention, x, mask, use_reentrant=self.reentrant)
        return self.head(F.gelu(self.up(x)))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_attention_with_a_mask(reentrant):
    model, x = Checkpointed(reentrant), torch.randn(2, 5, 8, requires_grad=True)
    plan = nap.normalize_(model, x)
    assert set(names(plan)) >= {"attention.query", "attention.key"}
    model(x).sum().backward()
    assert model.attention.query.weight.grad is not None
