"""Measures: definitions against slow references, broken input, and populations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from diagnostic_nets import INPUTS, generator, small_net
from nap import diagnostics as d

OF_FEATURES = [
    d.linearized_units,
    d.dead_units,
    d.dormant_units,
    d.feature_rank,
    d.effective_rank,
    d.stable_rank,
]


def relu_features(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).relu()


class TestUnits:
    def test_by_hand(self):
        # unit:              dead  always on  sometimes  tiny
        features = torch.tensor([[0, 1, 2, 1e-9], [0, 2, 0, 0.0], [0, -1, 5, 0.0]])
        assert d.dead_units(features) == 0.25
        assert d.linearized_units(features) == 0.5
        assert d.dormant_units(features) == 0.5
        assert d.dormant_units(features, tau=0) == d.dead_units(features)

    def test_a_channel_is_dead_only_if_zero_at_all_positions(self):
        features = torch.zeros(2, 3, 4, 4)
        features[0, 0, 1, 2] = 1.0
        assert d.dead_units(features).item() == pytest.approx(2 / 3)

    def test_time_positions_are_samples(self):
        features = relu_features(3, 5, 7)
        assert_close(d.feature_rank(features), d.feature_rank(features.flatten(0, 1)))
        as_conv1d = features.transpose(1, 2)
        assert_close(d.dormant_units(as_conv1d, unit_axis=1), d.dormant_units(features))

    def test_all_zero_layer_is_wholly_dead(self):
        zeros = torch.zeros(4, 3)
        assert d.dead_units(zeros) == d.dormant_units(zeros) == d.linearized_units(zeros) == 1
        assert d.feature_rank(zeros) == d.effective_rank(zeros) == d.stable_rank(zeros) == 0

    def test_dormancy_is_scale_free(self):
        features = relu_features(16, 9)
        assert_close(d.dormant_units(1e6 * features, 0.8), d.dormant_units(features, 0.8))

    def test_half_precision_does_not_overflow(self):
        assert d.dormant_units(torch.full((64, 4), 6e4, dtype=torch.float16)) == 0


class TestRank:
    @settings(max_examples=25, deadline=None)
    @given(st.lists(st.floats(1e-4, 10), min_size=1, max_size=6), st.integers(0, 99))
    def test_ranks_depend_on_singular_values_alone(self, values, seed):
        sigma = torch.tensor(values, dtype=torch.float64)
        n = len(values)
        left, _ = torch.linalg.qr(torch.randn(n + 3, n, generator=generator(seed), dtype=torch.float64))
        right, _ = torch.linalg.qr(torch.randn(n, n, generator=generator(seed + 1), dtype=torch.float64))
        features = left @ torch.diag(sigma) @ right
        ratios = sigma / sigma.max()
        if (ratios - 0.01).abs().min() > 1e-9:
            assert d.feature_rank(features) == (ratios > 0.01).sum()
        share = sigma / sigma.sum()
        assert_close(d.effective_rank(features), torch.exp(-(share * share.log()).sum()))
        assert_close(d.stable_rank(features), ratios.square().sum())

    def test_threshold_is_checked(self):
        with pytest.raises(ValueError, match="threshold is 2"):
            d.feature_rank(torch.eye(2), 2)


@pytest.mark.parametrize("measure", OF_FEATURES)
class TestEveryFeatureMeasure:
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_broken_features_never_look_healthy(self, measure, bad):
        features = relu_features(6, 4)
        features[2, 1] = bad
        assert measure(features).isnan()

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5,), ()])
    def test_refuses_what_has_no_samples_or_units(self, measure, shape):
        with pytest.raises(ValueError, match="shape"):
            measure(torch.zeros(shape))

    def test_population_by_vmap_equals_the_loop(self, measure):
        stacked = relu_features(4, 10, 6)
        stacked[1, :, 2] = 0
        stacked[2] = math.nan
        expected = torch.stack([measure(features) for features in stacked])
        assert_close(torch.func.vmap(measure)(stacked), expected, equal_nan=True)

    def test_returns_a_number_still_on_the_device(self, measure):
        assert measure(relu_features(5, 3)).shape == ()


class TestNorms:
    def test_parameter_norm_flattens_everything(self):
        model = small_net("layer")
        flat = torch.cat([p.flatten() for p in model.parameters()]).detach()
        assert_close(d.parameter_norm(model), flat.norm())
        layers = d.parameter_norm(model, per_layer=True)
        assert list(layers) == ["0", "1", "3"]
        assert_close(torch.stack(list(layers.values())).norm(), flat.norm())

    def test_tied_weights_count_once_and_half_precision_is_accurate(self):
        layer = nn.Linear(256, 256, bias=False).half()
        nn.init.constant_(layer.weight, 300.0)  # its square overflows float16
        assert d.parameter_norm(nn.Sequential(layer, layer)).item() == pytest.approx(300 * 256, rel=1e-3)

    def test_float32_norms_of_large_weights_do_not_drift(self):
        layer = nn.Linear(2048, 1024, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(1024, 2048, generator=generator()))  # one sum is 4e-5 low on CPU
        layer.weight.grad = layer.weight.detach().clone()
        exact = layer.weight.double().norm().item()
        assert d.parameter_norm(layer).item() == pytest.approx(exact, rel=2e-7)
        assert d.gradient_norm(layer).item() == pytest.approx(exact, rel=2e-7)

    def test_gradient_norm(self):
        model = small_net()
        with pytest.raises(ValueError, match="backward"):
            d.gradient_norm(model)
        model(INPUTS).sum().backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert_close(d.gradient_norm(model), flat.norm())
        assert_close(d.gradient_norm({n: p.grad for n, p in model.named_parameters()}), flat.norm())

    def test_population_by_vmap(self):
        stacked = {"w": torch.randn(3, 2, 2), "b": torch.randn(3, 2)}
        expected = torch.cat([stacked["w"].flatten(1), stacked["b"]], 1).norm(dim=1)
        assert_close(torch.func.vmap(d.parameter_norm)(stacked), expected)


@pytest.mark.parametrize("kind", ["plain", "layer", "batch"])
class TestJacobian:
    def reference(self, model, wrt):
        model.eval()
        total = []
        for x in INPUTS:
            x = x[None].clone().requires_grad_()
            to = [x] if wrt == "inputs" else list(model.parameters())
            rows = [torch.autograd.grad(out, to, retain_graph=True) for out in model(x)[0]]
            total.append(torch.cat([g.flatten() for row in rows for g in row]).norm())
        return torch.stack(total).mean()

    @pytest.mark.parametrize("wrt", ["inputs", "parameters"])
    def test_exact(self, kind, wrt):
        model = small_net(kind)
        found = d.jacobian_norm(model, INPUTS, wrt=wrt)
        assert model.training
        assert not found.requires_grad
        assert_close(found, self.reference(model, wrt).detach())

    @pytest.mark.parametrize("wrt", ["inputs", "parameters"])
    def test_hutchinson_approaches_it(self, kind, wrt):
        model = small_net(kind)
        found = d.jacobian_norm(model, INPUTS, wrt=wrt, probes=600, generator=generator())
        assert_close(found, d.jacobian_norm(model, INPUTS, wrt=wrt), rtol=0.03, atol=0)

    def test_diagonal_of_the_ntk(self, kind):
        model = small_net(kind)
        kernel = d.ntk(model, INPUTS)
        assert_close(kernel.diag().sqrt().mean(), d.jacobian_norm(model, INPUTS, wrt="parameters"))


class TestKernel:
    @pytest.mark.parametrize("kind", ["plain", "layer", "batch"])
    def test_against_autograd(self, kind):
        model = small_net(kind).eval()
        rows = [
            torch.cat(
                [g.flatten() for g in torch.autograd.grad(out, list(model.parameters()), retain_graph=True)]
            )
            for x in INPUTS
            for out in model(x[None])[0]
        ]
        full = torch.stack(rows) @ torch.stack(rows).T
        assert_close(d.ntk(model, INPUTS, full=True), full)
        traced = full.view(5, 3, 5, 3).diagonal(dim1=1, dim2=3).sum(-1)
        assert_close(d.ntk(model, INPUTS), traced)

    def test_rank_counts_distinct_examples(self):
        model = small_net()
        twice = torch.cat([INPUTS, INPUTS])
        assert d.ntk_rank(model, twice, threshold=1e-9) == 5
        assert d.ntk_rank(model, twice, threshold=1e-9, full=True) == 15

    @pytest.mark.parametrize("measure", [d.jacobian_norm, d.ntk_rank, d.ntk])
    def test_population_by_vmap_equals_the_loop(self, measure):
        models = [small_net("layer") for _ in range(3)]
        for seed, model in enumerate(models):
            for p in model.parameters():
                nn.init.normal_(p, generator=generator(seed))
        parameters, _ = torch.func.stack_module_state(models)
        parameters = {name: p.detach() for name, p in parameters.items()}
        population = torch.func.vmap(lambda p: measure(models[0], INPUTS, parameters=p))(parameters)
        assert_close(population, torch.stack([measure(model, INPUTS) for model in models]))

    def test_broken_weights_read_nan(self):
        model = small_net()
        nn.init.constant_(model[3].weight, math.nan)
        assert d.ntk_rank(model, INPUTS).isnan()
        assert d.jacobian_norm(model, INPUTS).isnan()

    def test_refusals(self):
        model = small_net()
        with pytest.raises(ValueError, match="no example"):
            d.ntk(model, INPUTS[:0])
        with pytest.raises(ValueError, match="no derivative"):
            d.jacobian_norm(nn.Embedding(3, 2), torch.tensor([1, 2]))
        with pytest.raises(ValueError, match="'weights'"):
            d.jacobian_norm(model, INPUTS, wrt="weights")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="one tensor"):
            d.ntk(nn.LSTM(4, 2).double(), INPUTS)
