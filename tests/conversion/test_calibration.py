"""Norms in trained networks: statistics are kept exactly, functions as well as a norm can."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nap
from healthy_nets import Language, Setup, cnn, digits, made, mlp, on_digits
from nap.conversion.calibration import normalize_trained_
from nap.conversion.following import by_features
from nap.conversion.movement import recovery
from nap.diagnostics.doctor import diagnose


def passing(model: nn.Module, name: str, batches: list[Tensor]) -> Tensor:
    """What comes out of a module, (samples, features), features on the last axis."""
    found: list[Tensor] = []
    module = model.get_submodule(name)

    def see(module: nn.Module, args: Any, output: Tensor) -> None:
        found.append(output.detach().movedim(1, -1).flatten(0, -2) if output.ndim == 4 else output.detach())

    handle = module.register_forward_hook(see)
    with torch.no_grad():
        for batch in batches:
            model.eval()(batch)
    handle.remove()
    return torch.cat([one.reshape(-1, one.shape[-1]) for one in found]).double()


def assert_same_statistics(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one.mean(0), other.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(one.std(0), other.std(0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("over", ["sample", "position"])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_each_feature_keeps_its_mean_and_deviation(kind: str, norm: Any, over: Any) -> None:
    torch.manual_seed(0)
    layer: Any = nn.Linear(8, 6) if kind == "linear" else nn.Conv2d(3, 6, 3)
    nn.init.normal_(layer.bias, std=2.0)
    model = nn.Sequential(layer, nn.ReLU()).double()
    shape = (40, 8) if kind == "linear" else (40, 3, 6, 6)
    batches = [3 + torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)]
    before = passing(model, "0", batches)
    normalize_trained_(model, [(x,) for x in batches], norm=norm, over=over)
    assert layer.bias is None
    assert_same_statistics(before, passing(model, "0", batches))


def test_the_function_stays_exactly_where_all_samples_have_one_size() -> None:
    """LayerNorm is linear on pre-activations with one mean and one variance: nothing is lost."""
    torch.manual_seed(0)
    directions = torch.linalg.qr(torch.randn(24, 24, dtype=torch.float64)).Q
    centred = directions - directions.mean(0)
    kept = torch.linalg.qr(centred[:, :8]).Q  # orthonormal columns that sum to zero
    model: Any = nn.Sequential(nn.Linear(8, 24, bias=False), nn.GELU(), nn.Linear(24, 3)).double()
    assert torch.allclose(kept.sum(0), torch.zeros(8, dtype=torch.float64), atol=1e-12)
    model[0].weight.data.copy_(kept)
    x = nn.functional.normalize(torch.randn(200, 8, dtype=torch.float64)) * 3
    wanted = model(x).detach()
    report = normalize_trained_(model, x)
    torch.testing.assert_close(model(x), wanted, rtol=1e-9, atol=1e-9)
    assert report.output_error < 1e-9 < report.plain_output_error
    other = nn.functional.normalize(torch.randn(200, 8, dtype=torch.float64)) * 3
    assert torch.isfinite(model(other)).all()


def test_later_layers_are_calibrated_behind_converted_ones() -> None:
    torch.manual_seed(0)
    setup = on_digits(mlp())
    setup.train(200)
    model, x = setup.model.double(), digits()[0][:512].double()
    before = {name: passing(model, name, [x]) for name in ("0", "2")}
    normalize_trained_(model, x)
    for name, wanted in before.items():
        assert_same_statistics(wanted, passing(model, name, [x]))


class Stacked(nn.Module):
    """Three layers in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(3, 8, 16)), nn.Parameter(torch.randn(3, 16, 4))
        self.b = nn.Parameter(torch.randn(3, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        return torch.bmm((torch.bmm(x.expand(3, -1, -1), self.w) + self.b).relu(), self.v).sum(0)


class Vmapped(Stacked):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(lambda w, v: (x @ w).relu() @ v)(self.w, self.v).sum(0)


class Gated(nn.Module):
    """The gate is a part of a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 64), nn.Linear(32, 4)
        nn.init.normal_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, -1)
        return self.down(nn.functional.silu(gate) * value)


class InAFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(16, 8)), nn.Parameter(3 * torch.randn(16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.linear(x, self.w, self.b).relu())


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("make", [Stacked, Gated, InAFunction])
def test_norms_of_other_kinds_are_calibrated(make: type[nn.Module], norm: Any) -> None:
    torch.manual_seed(0)
    report = normalize_trained_(make(), torch.randn(256, 8), norm=norm)
    assert len(report.layers) == 1
    assert report.output_error < min(0.4, report.plain_output_error)


def test_a_bias_in_a_function_goes_into_the_offset() -> None:
    torch.manual_seed(0)
    model, x = InAFunction().double(), torch.randn(256, 8, dtype=torch.float64)
    before = nn.functional.linear(x, model.w, model.b).detach()
    normalize_trained_(model, x)
    assert_same_statistics(before, passing(model, "nap_products.w", [x]))


@functools.cache
def trained(name: str) -> Setup:
    """A network in eval mode after 300 steps of training."""
    setup = made(name)
    setup.train(300)
    setup.model.eval()
    return setup


@pytest.mark.parametrize("options", [{}, {"norm": "rms"}, {"radii": "fan-in"}, {"affine": "scale"}])
@pytest.mark.parametrize("name", ["MLP", "MLP, SGD", "CNN, BatchNorm", "transformer", "policy"])
def test_a_trained_network_moves_less_than_by_plain_conversion(name: str, options: Any) -> None:
    setup = trained(name)
    model, plain = copy.deepcopy(setup.model), copy.deepcopy(setup.model)
    loss = setup.loss(model(setup.probe)).item()
    plan_options = {key: value for key, value in options.items() if key != "radii"}
    nap.normalize_(plain, setup.probe[:2], **plan_options)
    report = normalize_trained_(model, setup.probe, **options)
    assert report.output_error < report.plain_output_error
    after = setup.loss(model.eval()(setup.probe)).item()
    assert after <= max(setup.loss(plain.eval()(setup.probe)).item(), loss + 0.05)
    assert "relative error" in str(report)
    assert report.to_json()["layers"][0]["norm"]


def test_a_batch_norm_is_recalibrated() -> None:
    """Norms go in front of BatchNorms, whose running statistics are of what entered them before."""
    setup = on_digits(cnn(), shape=(1, 8, 8))
    setup.train(300)
    model = setup.model.double()
    x = setup.probe.double()
    before = passing(model, "1", [x])
    report = normalize_trained_(model, x)
    assert_same_statistics(before, passing(model, "1", [x]))
    assert "1" in [moved.norm for moved in report.layers]


def test_queries_and_keys_keep_their_size_and_the_biases_of_torchs_attention_are_counted() -> None:
    torch.manual_seed(0)
    model: Any = Language().double()
    tokens = torch.randint(16, (16, 12))
    for block in model.blocks:
        nn.init.normal_(block.attention.in_proj_bias, std=0.5)
    first = model.blocks[0]
    entered = first.first(model.table(tokens) + model.place(torch.arange(12)))
    weight, bias = first.attention.in_proj_weight[:32], first.attention.in_proj_bias[:32]
    queries = nn.functional.linear(entered, weight, bias).detach()
    wanted = queries.unflatten(-1, (2, 16)).flatten(0, 2).square().mean(0)
    report = normalize_trained_(model, tokens)
    found: list[Tensor] = []
    norm = first.attention.q_norm
    handle = norm.register_forward_hook(lambda m, a, out: found.append(by_features(m, out.detach())))
    model(tokens)
    handle.remove()
    torch.testing.assert_close(found[0].square().mean(0), wanted, rtol=1e-6, atol=1e-6)
    assert report.output_error < report.plain_output_error


def test_fan_in_radii_change_the_weights_and_not_the_function() -> None:
    setup = made("MLP, SGD")
    setup.train(300)
    one: Any = setup.model.double()
    other: Any = copy.deepcopy(setup.model)
    x = setup.probe.double()
    normalize_trained_(one, x)
    normalize_trained_(other, x, radii="fan-in")
    torch.testing.assert_close(one(x), other(x), rtol=1e-9, atol=1e-9)
    weight = other[2].weight
    assert weight.square().mean().sqrt().item() == pytest.approx(128**-0.5)
    assert not torch.allclose(one[2].weight, weight)


def test_converted_networks_are_normalised_and_train_under_projection() -> None:
    setup = made("MLP")
    setup.train(300)
    normalize_trained_(setup.model, setup.probe)
    nap.verify(setup.model, setup.probe[:4])
    optimizer = torch.optim.Adam(setup.model.parameters(), lr=1e-3)
    projector = nap.Projector(setup.model).attach(optimizer)
    setup.optimizer = optimizer
    before = setup.loss(setup.model(setup.probe)).item()
    setup.train(100)
    assert setup.loss(setup.model(setup.probe)).item() < before
    assert all(ratio == pytest.approx(1, abs=1e-6) for ratio in projector.norm_ratios().values())
    assert diagnose(setup.model, optimizer, setup.probe, loss=setup.loss).findings == ()


def test_a_network_with_norms_is_left_as_it_is() -> None:
    setup = made("MLP, NaP")
    setup.train(50)
    before = copy.deepcopy(setup.model.state_dict())
    report = normalize_trained_(setup.model, setup.probe)
    assert (report.layers, report.output_error) == ((), 0.0)
    assert all(torch.equal(before[key], value) for key, value in setup.model.state_dict().items())


class Branch(nn.Module):
    """A layer that only negative sums reach."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.one if x.sum() > 0 else self.two)(x).relu())


class Auxiliary(nn.Module):
    """A head that acts in training alone, where no calibration is done."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.aux, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(self.body(x).relu())
        return out + self.head(self.aux(x).relu()) if self.training else out


@pytest.mark.parametrize(
    ("model", "batches", "options", "words"),
    [
        (mlp(), torch.randn(64, 32), {}, "fails on the example inputs"),
        (mlp(), [(torch.randn(64, 64),), (torch.randn(64, 3),)], {}, "fails on the example inputs"),
        (mlp(), torch.full((64, 64), float("nan")), {}, "NaN or infinity on batch 0"),
        (mlp(), torch.randn(1, 64), {}, "one sample has no deviation"),
        (mlp(), [], {}, "needs inputs of the kind"),
        (mlp(), torch.randn(64, 64), {"affine": "none"}, "affine='none'"),
        (mlp(), torch.randn(64, 64), {"radii": "mine"}, "radii='mine'"),
        (nn.GRU(4, 8), torch.randn(5, 3, 4), {"rnn": "layernorm"}, "inside of each step"),
        (Vmapped(), torch.randn(64, 8), {}, "run under vmap"),
        (nn.MultiheadAttention(8, 2, add_bias_kv=True), (torch.randn(5, 3, 8),) * 3, {}, "add_bias_kv"),
        (nn.LSTMCell(4, 8), torch.randn(5, 4), {"rnn": "layernorm"}, "inside of each step"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_model_left_alone(
    model: nn.Module, batches: Any, options: Any, words: str
) -> None:
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=words):
        normalize_trained_(model, batches, **options)
    assert list(before) == list(model.state_dict())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_layers_that_no_batch_reaches_are_named() -> None:
    torch.manual_seed(0)
    high, low = torch.ones(8, 4) + torch.rand(8, 4), -torch.ones(8, 4) - torch.rand(8, 4)
    report = normalize_trained_(Branch(), [(high,), (low,)])
    assert {moved.norm for moved in report.layers} == {"one.nap_norm", "two.nap_norm"}
    with pytest.raises(ValueError, match=r"no batch reaches aux\.nap_norm"):
        normalize_trained_(Auxiliary(), high)


def test_recovery_counts_updates() -> None:
    losses = iter([4.0, 3.0, 2.0, 1.0, 1.0])
    assert recovery(lambda: next(losses), 1.5, window=2) == 4
    assert recovery(lambda: 2.0, 1.5, window=2, most=5) is None
    with pytest.raises(ValueError, match="at least 1"):
        recovery(lambda: 1.0, 1.0, window=0)
