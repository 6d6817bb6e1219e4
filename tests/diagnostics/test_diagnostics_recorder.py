"""The recorder: what it reads of a model, where the units are, what it reports and refuses."""

import pytest
import torch
from torch import nn

from diagnostic_nets import INPUTS, generator, small_net
from nap import diagnostics as d
from nap.rates.learning_rate import effective_learning_rates


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
