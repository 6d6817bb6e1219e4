"""Diagnostics: definitions against slow references, broken input, populations, and the recorder."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from nap import diagnostics as d
from nap.rates.learning_rate import effective_learning_rates

OF_FEATURES = [
    d.linearized_units,
    d.dead_units,
    d.dormant_units,
    d.feature_rank,
    d.effective_rank,
    d.stable_rank,
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


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


def small_net(kind="plain"):
    torch.manual_seed(0)
    norm = {"plain": nn.Identity(), "layer": nn.LayerNorm(6), "batch": nn.BatchNorm1d(6)}[kind]
    return nn.Sequential(nn.Linear(4, 6), norm, nn.Tanh(), nn.Linear(6, 3)).double()


INPUTS = torch.randn(5, 4, generator=generator(3), dtype=torch.float64)


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


class ConvNet(nn.Module):
    """One ReLU used twice, a Conv1d (units on axis 1), dropout, and a head."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 7, 3)
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(0.5)
        self.hidden = nn.Linear(7 * 4, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        x = self.relu(self.conv(x))
        x = self.relu(self.hidden(self.drop(x.flatten(1))))
        return self.head(x)


class TestRecorder:
    def test_every_call_of_an_activation_and_the_penultimate_features(self):
        torch.manual_seed(1)
        model, x = ConvNet(), torch.randn(32, 2, 6)
        with torch.no_grad():  # four of the seven channels are negative on every input
            for p in model.conv.parameters():
                p[3:] = 0 if p.ndim > 1 else -1
        row = d.Recorder(model).measure(x)
        assert row["dead/relu"] == pytest.approx(4 / 7)
        model.eval()
        features = model.relu(model.hidden(model.relu(model.conv(x)).flatten(1)))
        assert row["rank/penultimate"] == row["rank/relu#2"] == d.feature_rank(features).item()
        assert row["norm/parameters"] == pytest.approx(d.parameter_norm(model).item())
        assert "norm/gradients" not in row
        assert all(isinstance(value, float) for value in row.values())

    def test_leaves_the_model_and_the_random_state_alone(self):
        model = ConvNet()
        model.drop.eval()
        before = torch.get_rng_state()
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        d.Recorder(model).measure(torch.randn(4, 2, 6, generator=generator()))
        with pytest.raises(RuntimeError):
            d.Recorder(model).measure(torch.randn(4, 2, 9, generator=generator()))
        assert torch.equal(torch.get_rng_state(), before)
        assert model.training
        assert not model.drop.training
        assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]

    def test_random_layers_do_not_move_the_random_state(self):
        class Noisy(nn.Module):
            def forward(self, x):
                return x + torch.randn_like(x)

        before = torch.get_rng_state()
        d.Recorder(nn.Sequential(Noisy(), nn.ReLU(), nn.Linear(3, 1))).measure(torch.zeros(2, 3))
        # Building the Linear draws too, so compare with building alone.
        torch.set_rng_state(before)
        nn.Linear(3, 1)
        after_building = torch.get_rng_state()
        torch.set_rng_state(before)
        d.Recorder(nn.Sequential(Noisy(), nn.ReLU(), nn.Linear(3, 1))).measure(torch.zeros(2, 3))
        assert torch.equal(torch.get_rng_state(), after_building)

    def test_gradients_and_rates(self):
        model = small_net("layer")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        model(INPUTS).sum().backward()
        row = d.Recorder(model, optimizer=optimizer).measure(INPUTS)
        assert row["norm/gradients"] == pytest.approx(d.gradient_norm(model).item())
        for name, rate in effective_learning_rates(model, optimizer).items():
            assert row[f"rate/{name}"] == pytest.approx(rate)

    def test_chosen_layers_and_arguments(self):
        model = small_net("layer")
        recorder = d.Recorder(model, ["0", model[1]])
        assert recorder.layers == ("0", "1")
        found = {key.partition("/")[2] for key in recorder.measure((INPUTS,))}
        assert found == {"0", "1", "parameters"}

    def test_every(self):
        recorder = d.Recorder(small_net(), every=3)
        assert [bool(recorder.step(INPUTS)) for _ in range(6)] == [False, False, True] * 2

    def test_refusals(self):
        class Functional(nn.Module):
            def forward(self, x):
                return x.relu()

        with pytest.raises(ValueError, match="cannot be hooked"):
            d.Recorder(Functional()).measure(INPUTS)
        with pytest.raises(ValueError, match="'nope' is no module"):
            d.Recorder(small_net(), ["nope"])
        with pytest.raises(ValueError, match="every is 0"):
            d.Recorder(small_net(), every=0)
        with pytest.raises(ValueError, match="not a tensor"):
            d.Recorder(nn.Sequential(nn.LSTM(4, 2)).double(), ["0"]).measure(INPUTS)
        with pytest.raises(ValueError, match="'nope', which is not looked at"):
            d.Recorder(small_net(), unit_axis={"nope": 1})


class Patches(nn.Module):
    """A convolution whose channels move to the last axis, as tokens of a vision transformer."""

    def __init__(self, channels: int = 6):
        super().__init__()
        self.conv, self.act, self.head = nn.Conv2d(3, channels, 2, 2), nn.ReLU(), nn.Linear(channels, 2)

    def forward(self, x):
        return self.head(self.act(self.conv(x).flatten(2).transpose(1, 2)).mean(1))


def first_channels_dead_(conv, count):
    with torch.no_grad():
        conv.weight[:count] = 0
        conv.bias[:count] = -1


class TestUnitAxis:
    def test_channels_that_moved_are_found_by_their_number(self):
        model = Patches(6)
        first_channels_dead_(model.conv, 3)
        row = d.Recorder(model).measure(torch.randn(8, 3, 4, 4, generator=generator()))  # 4 tokens
        assert row["dead/act"] == pytest.approx(3 / 6)

    def test_two_axes_of_that_size_are_an_error_until_told(self):
        model, images = Patches(4), torch.randn(8, 3, 4, 4, generator=generator())
        first_channels_dead_(model.conv, 3)
        with pytest.raises(ValueError, match=r"units of act.*conv has 4.*\[1, 2\].*unit_axis=\{'act'"):
            d.Recorder(model).measure(images)
        assert d.Recorder(model, unit_axis={"act": 2}).measure(images)["dead/act"] == 3 / 4

    @pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm2d(4)])
    def test_entry_by_entry_nothing_is_ambiguous(self, norm):
        model = nn.Sequential(nn.Conv2d(3, 4, 1), norm, nn.Dropout(), nn.ReLU(), nn.Conv2d(4, 1, 1))
        first_channels_dead_(model[0], 3)
        row = d.Recorder(model).measure(torch.randn(8, 3, 4, 4, generator=generator()))
        assert row["dead/3"] == 3 / 4

    def test_no_axis_of_that_size_is_an_error(self):
        model = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(-1, (2, 3)), nn.ReLU(), nn.Flatten())
        with pytest.raises(ValueError, match="no axis"):
            d.Recorder(model).measure(torch.ones(5, 4))

    def test_gates_split_the_units_in_place(self):
        model = nn.Sequential(nn.Conv1d(2, 10, 1), nn.GLU(1))
        row = d.Recorder(model).measure(torch.randn(3, 2, 7, generator=generator()))
        assert row["rank/1"] <= 5

    def test_behind_a_layer_of_another_kind_the_rule_for_shapes_holds(self):
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.rnn, self.act = nn.Linear(2, 3), nn.GRU(3, 5), nn.ReLU()

            def forward(self, x):
                return self.act(self.rnn(self.inner(x))[0])

        assert d.Recorder(Recurrent()).measure(torch.ones(4, 1, 2))["rank/act"] >= 1


class TestZeros:
    @pytest.mark.parametrize("act", [nn.GELU, nn.SiLU, nn.Tanh, nn.LeakyReLU, nn.Sigmoid, nn.Hardtanh])
    def test_activations_without_zeros_have_no_dead_or_linearized_units(self, act):
        model = nn.Sequential(nn.Linear(4, 6), act(), nn.Linear(6, 2))
        row = d.Recorder(model).measure(torch.randn(9, 4, generator=generator()))
        assert {key.partition("/")[0] for key in row} == {"dormant", "rank", "norm"}

    @pytest.mark.parametrize("act", [nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.0), nn.Hardtanh(0, 1)])
    def test_the_others_report_them_even_when_no_unit_is_zero(self, act):
        model = nn.Sequential(nn.Linear(4, 6), act, nn.Linear(6, 2))
        nn.init.zeros_(model.get_parameter("0.weight"))
        nn.init.constant_(model.get_parameter("0.bias"), 0.5)
        row = d.Recorder(model).measure(torch.ones(9, 4))
        assert row["linearized/1"] == row["linearized/penultimate"] == 1
        assert row["dead/1"] == row["dead/penultimate"] == 0

    @pytest.mark.parametrize(("function", "reported"), [(torch.relu, True), (torch.tanh, False)])
    def test_penultimate_features_of_a_function(self, function, reported):
        class Functional(nn.Module):
            def __init__(self):
                super().__init__()
                self.hidden, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

            def forward(self, x):
                return self.head(function(self.hidden(x)))

        row = d.Recorder(Functional()).measure(torch.randn(32, 4, generator=generator()))
        assert ("linearized/penultimate" in row) == reported

    def test_printed_it_says_what_it_does_not_see(self):
        class Snake(nn.Module):
            def forward(self, x):
                return x + x.sin() ** 2

        text = str(d.Recorder(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Snake(), nn.GELU())))
        assert "1: ReLU\n" in text
        assert "3: GELU, without dead/ and linearized/" in text
        assert "written as functions" in text
        assert "2: Snake" in text


class TestArguments:
    """As in nap.plan: a tuple lists the arguments, anything else is the only one, kwargs are apart."""

    class Batch(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.act, self.head = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)

        def forward(self, batch, *, scale=None):
            x = batch["x"] if isinstance(batch, dict) else batch
            return self.head(self.act(self.hidden(x if scale is None else x * scale)))

    def test_a_dict_is_one_argument(self):
        model, x = self.Batch(), torch.randn(8, 4, generator=generator())
        assert d.Recorder(model).measure({"x": x}) == d.Recorder(model).measure(x)

    def test_named_arguments_are_apart(self):
        model, x = self.Batch(), torch.randn(8, 4, generator=generator())
        expected = d.Recorder(model).measure(-x)
        assert d.Recorder(model).measure((x,), {"scale": -1}) == expected
        assert d.Recorder(model).step((), {"batch": x, "scale": -1}) == expected
