"""A norm and the ReLU after it, computed together: the same function, on a GPU in fewer passes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import nap
from gpu import DEVICE
from nap.lab.models.transformer import Transformer
from nap.norms import fused_relu
from nap.norms.fused_relu import FusedReLU

pytestmark = pytest.mark.cuda
needs_triton = pytest.mark.skipif(fused_relu._kernels is None, reason="needs Triton")


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def rows() -> Tensor:
    return torch.randn(2, 3, 6, dtype=torch.float64, device=DEVICE)


def mlp(**options: Any) -> nn.Module:
    """Converted, with scales and offsets that matter."""
    layers = [nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 10, bias=False), nn.ReLU(), nn.Linear(10, 2)]
    model = nn.Sequential(*layers).to(DEVICE).double()
    nap.normalize_(model, rows(), **options)
    for name, parameter in model.named_parameters():
        if "nap_norm" in name:
            nn.init.normal_(parameter)
    return model


def fused_copy(model: nn.Module, x: Any) -> tuple[nn.Module, dict[str, str]]:
    twin = copy.deepcopy(model)
    return twin, nap.fuse_relus_(twin, x)


def compared(model: nn.Module, other: nn.Module, x: Tensor) -> None:
    """Outputs and gradients of both are the same."""
    for net in (model, other):
        net.zero_grad()
        out = net(x)
        out.square().mean().backward()
    torch.testing.assert_close(model(x), other(x))
    ours, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, theirs[name.removeprefix("_orig_mod.")].grad)


def operations(model: Any, *x: Any) -> list[Any]:
    """What the compiler sees."""
    seen: list[Any] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch._dynamo.reset()
    torch.compile(model, backend=keep, fullgraph=True, dynamic=False)(*x)
    return seen


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our kernels are used on a CPU, too: in Triton's interpreter."""
    monkeypatch.setattr(fused_relu, "_on_a_gpu", lambda x: True)


def test_the_hidden_layers_of_a_transformer_are_found():
    tokens = torch.randint(8, (2, 5))
    model = Transformer(8, 5, blocks=2, heads=2, width=8)
    nap.normalize_(model, tokens)
    expected = {f"blocks.{i}.up": f"blocks.{i}.activation" for i in range(2)}
    assert nap.fuse_relus_(model, tokens) == expected
    assert nap.fuse_relus_(model, tokens) == {}


@pytest.mark.parametrize("backend", [None, "aot_eager"], ids=["eager", "compiled"])
def test_on_a_cpu_nothing_changes(backend):
    plain, x = mlp().cpu(), rows().cpu()
    fused, pairs = fused_copy(plain, x)
    assert pairs == {"0": "1", "2": "3"}
    assert fused.state_dict().keys() == plain.state_dict().keys()
    net: Any = fused if backend is None else torch.compile(fused, backend=backend, fullgraph=True)
    compared(net, plain, x)


@needs_triton
@pytest.mark.parametrize("options", [{}, {"affine": "none"}, {"eps": 1e-3}, {"affine": "scale"}], ids=str)
def test_our_kernels_give_the_same_function_with_the_same_gradients(options, forced):
    plain = mlp(**options)
    fused, _ = fused_copy(plain, rows())
    compared(torch.compile(fused, backend="aot_eager", fullgraph=True), plain, rows())  # type: ignore[arg-type]


@needs_triton
def test_without_the_compiler_our_kernels_are_not_used(forced, monkeypatch):
    fused, _ = fused_copy(mlp(), rows())
    monkeypatch.setattr(fused_relu, "fits", lambda rows: 1 / 0)
    fused(rows())


@needs_triton
def test_the_compiler_sees_our_operation_and_no_relu(forced):
    plain = mlp()
    fused, _ = fused_copy(plain, rows())
    seen = operations(fused, rows())
    assert seen.count(torch.ops.nap.norm_relu) == 2
    assert F.relu not in seen
    assert torch.ops.nap.norm_relu not in operations(plain, rows())


@needs_triton
@pytest.mark.filterwarnings("ignore:.*CUDA.*:UserWarning")
def test_on_a_gpu_it_is_used_without_being_forced():
    fused, _ = fused_copy(mlp().float(), rows().float())  # the GPU need not be there
    with FakeTensorMode(allow_non_fake_inputs=True):
        for module in fused.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(torch.empty(parameter.shape, device="cuda"))
        x = torch.empty(2, 3, 6, device="cuda")
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            seen = operations(fused, x)
            assert seen.count(torch.ops.nap.norm_relu) == 2
            assert F.relu not in seen


@needs_triton
def test_under_transforms_of_functions_it_is_a_plain_relu(forced):
    fused, _ = fused_copy(mlp(), rows())
    state = {name: parameter.detach() for name, parameter in fused.named_parameters()}
    stacked = {name: torch.stack([value, 2 * value]) for name, value in state.items()}

    def out(state: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(fused, state, (x,))

    many = torch.func.vmap(out, in_dims=(0, None))
    gradient = torch.func.grad(lambda state, x: out(state, x).square().sum())
    for function, given in ((many, stacked), (gradient, state)):
        seen = operations(lambda state, x, f=function: f(state, x), given, rows())
        assert F.relu in seen
        assert torch.ops.nap.norm_relu not in seen


@needs_triton
def test_rows_that_our_kernels_cannot_take_go_the_old_way(forced, monkeypatch):
    plain = mlp()
    fused, _ = fused_copy(plain, rows())
    assert torch.ops.nap.norm_relu not in operations(fused, rows()[:0])
    torch._dynamo.reset()
    monkeypatch.setattr(fused_relu._kernels, "WIDEST", 9)
    assert torch.ops.nap.norm_relu not in operations(fused, rows())
    compared(torch.compile(fused, backend="aot_eager"), plain, rows())  # type: ignore[arg-type]


class Between(nn.Module):
    """A layer, something, an activation."""

    def __init__(self, between: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.between, self.activation = nn.Linear(6, 4), between, activation
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.activation(self.between(self.first(x))))


class Shift(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return x


@pytest.mark.parametrize(
    ("between", "activation"),
    [
        (nn.Identity(), nn.GELU()),
        (nn.Identity(), nn.ReLU(inplace=True)),
        (nn.Dropout(0.5), nn.ReLU()),
        (Shift(), nn.ReLU()),
    ],
    ids=repr,
)
def test_where_they_are_no_neighbours_they_are_not_fused(between, activation):
    model = Between(between, activation).to(DEVICE).double()
    nap.normalize_(model, rows())
    assert nap.fuse_relus_(model, rows()) == {}


class Twice(nn.Module):
    """What the first layer gives goes past the ReLU, too; the second is called twice; the third is fine."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.one, self.two, self.three, self.last = nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = self.one(y) + y.sigmoid()
        z = self.two(self.second(self.second(z).tanh()))
        return self.last(self.three(self.third(z)))


def test_what_others_use_and_what_is_called_twice_is_left_alone():
    model = Twice().to(DEVICE).double()
    nap.normalize_(model, rows())
    assert nap.fuse_relus_(model, rows()) == {"third": "three"}


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.relu, self.last = (
            nn.Linear(6, 6), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.relu(self.second(self.relu(self.first(x)))))


def test_a_relu_of_several_layers_stays_as_it_is():
    model = Shared().to(DEVICE).double()
    nap.normalize_(model, rows())
    assert nap.fuse_relus_(model, rows()) == {}


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


@needs_triton
def test_inside_a_checkpoint_it_is_computed_again(forced):
    plain = Recomputed().to(DEVICE).double()
    nap.normalize_(plain, rows())
    fused, pairs = fused_copy(plain, rows())
    assert pairs == {"body.0": "body.1"}
    compared(torch.compile(fused, backend="aot_eager", fullgraph=True), plain, rows())  # type: ignore[arg-type]


@needs_triton
def test_copies_and_files_hold_fused_models_of_their_own(forced):
    fused, _ = fused_copy(mlp(), rows())
    x = rows()
    twins: list[Any] = [copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))]
    for twin in twins:
        assert isinstance(twin[1], FusedReLU)
        assert repr(twin[3]) == "FusedReLU()"
        assert operations(twin, x).count(torch.ops.nap.norm_relu) == 2
        torch.testing.assert_close(twin(x), fused(x))


def test_a_fused_model_is_as_converted_as_it_was():
    fused, _ = fused_copy(mlp(), rows())
    nap.verify(fused, rows())


def test_a_model_without_norms_of_step_1_is_refused_and_so_are_inputs_that_do_not_fit():
    with pytest.raises(ValueError, match=r"call nap\.normalize_ on it first"):
        nap.fuse_relus_(nn.Linear(3, 2), torch.randn(2, 3))
    with pytest.raises(ValueError, match="fails on the example inputs"):
        nap.fuse_relus_(mlp(), torch.randn(2, 3, device=DEVICE))


@pytest.mark.parametrize("where", ["layer", "relu"])
def test_hooks_of_others_in_between_keep_a_pair_apart(where):
    def change(module, args, output=None):
        (args[0] if output is None else output).mul_(3)

    model: Any = mlp()
    if where == "layer":
        model[0].register_forward_hook(change)
    else:
        model[1].register_forward_pre_hook(change)
    assert nap.fuse_relus_(model, rows()) == {"2": "3"}


class Sum(nn.Module):
    """Two layers whose sum enters a ReLU."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.relu, self.head = nn.Linear(6, 10), nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2)

    def forward(self, x):
        return self.head(self.relu(self.a(x) + self.b(x)))


@needs_triton
def test_a_norm_on_the_input_of_the_relu_is_fused_to_it(forced):
    plain: Any = Sum().to(DEVICE).double()
    nap.normalize_(plain, rows(), residual="sum")
    nn.init.normal_(plain.relu.nap_norm.bias)
    fused: Any
    fused, pairs = fused_copy(plain, rows())
    assert pairs == {"relu": "relu"}
    assert torch.ops.nap.norm_relu in operations(fused, rows())
    compared(torch.compile(fused, backend="aot_eager"), plain, rows())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="this FusedReLU has a norm on its input"):
        fused.relu(input=rows())


@needs_triton
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_needs_no_kernels_of_ours(forced, strict):
    fused, _ = fused_copy(mlp(), rows())
    program = torch.export.export(fused, (rows(),), strict=strict)
    assert not [node for node in program.graph.nodes if "norm_relu" in str(node.target)]


def test_inference_mode_is_no_obstacle():
    with torch.inference_mode():
        assert nap.fuse_relus_(mlp(), rows()) == {"0": "1", "2": "3"}
