"""`find_wiring`: which entries of which parameters belong to a unit, and what it refuses to guess."""

import copy

import pytest
import torch
from torch import nn

import nap
from method_nets import INPUTS, Branches, batch_norm, build, conv, layer_norm, mlp, nap_conv
from nap.methods import ReDo, find_wiring


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.up, self.down, self.head = (nn.Linear(4, 4) for _ in range(4))
        self.relu = nn.ReLU()

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.down(self.relu(self.up(x))))


class Noisy(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.mu, self.sigma = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.mu(x) + self.sigma(x * torch.randn(x.shape[-1])) * torch.randn(self.mu.out_features)


class TestWiring:
    def test_conv_flatten_linear(self):
        wiring = find_wiring(build(conv), INPUTS)
        channels = wiring.layers["2"].outgoing[0]
        assert channels.parameter == "6.weight"
        assert channels.unit.tolist() == [[c for c in range(6) for _ in range(9)]]
        assert wiring.outputs == ("8",)

    def test_channels_last_flatten(self):
        class ChannelsLast(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.relu, self.head = nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Linear(12, 2)

            def forward(self, x):
                return self.head(self.relu(self.conv(x).permute(0, 2, 3, 1)).flatten(1))

        units = find_wiring(ChannelsLast(), torch.rand(1, 1, 3, 3)).layers["conv"]
        assert units.outgoing[0].unit.tolist() == [[0, 1, 2] * 4]
        assert units.axis == 3

    def test_norms_are_part_of_the_unit(self):
        incoming = {
            net: [e.parameter for e in find_wiring(build(net), INPUTS).layers[first].incoming]
            for net, first in [(layer_norm, "0"), (batch_norm, "0"), (nap_conv, "2")]
        }
        assert incoming[layer_norm] == incoming[batch_norm] == ["0.weight", "0.bias", "1.weight", "1.bias"]
        assert incoming[nap_conv] == ["2.weight", "2.nap_norm.weight", "2.nap_norm.bias"]

    @pytest.mark.parametrize("residual", ["branch", "sum"])
    def test_a_batch_norm_is_part_of_the_unit_though_it_carries_a_norm(self, residual):
        class Sum(nn.Module):
            def __init__(self):
                super().__init__()
                self.one, self.two, self.norm = nn.Linear(4, 6), nn.Linear(4, 6), nn.BatchNorm1d(6)
                self.relu, self.head = nn.ReLU(), nn.Linear(6, 2)

            def forward(self, x):
                return self.head(self.relu(self.norm(self.one(x) + self.two(x))))

        model, x = Sum(), torch.rand(3, 4)
        nap.normalize_(model, x, residual=residual)
        (units,) = find_wiring(model, x).layers.values()
        incoming = [entries.parameter for entries in units.incoming]
        assert incoming[-2:] == ["norm.weight", "norm.bias"]
        assert "nap_norm" in dict(model.norm.named_modules()) or residual == "branch"
        assert "norm.nap_norm.weight" not in incoming  # BatchNorm would undo that scale

    def test_shared_activation_and_concatenation(self):
        wiring = find_wiring(Branches(), (torch.rand(2, 4), torch.rand(2, 2)))
        left, right = wiring.layers["left"], wiring.layers["right"]
        assert (left.call, right.call) == (0, 1)
        assert left.outgoing[0].unit.tolist() == [[0, 1, 2, 3, 4] + [-1] * 5]
        assert right.outgoing[0].unit.tolist() == [[-1] * 5 + [0, 1, 2] + [-1] * 2]

    def test_grouped_and_transposed_convolutions(self):
        model = nn.Sequential(
            nn.ConvTranspose2d(2, 4, 2, groups=2),
            nn.ReLU(),
            nn.Conv2d(4, 6, 2, groups=2),
            nn.ReLU(),
            nn.ConvTranspose2d(6, 1, 2),
        )
        wiring = find_wiring(model, torch.rand(1, 2, 4, 4))
        assert wiring.layers["0"].incoming[0].unit[..., 0, 0].tolist() == [[0, 1], [2, 3]]
        assert wiring.layers["0"].outgoing[0].unit[..., 0, 0].tolist() == [[0, 1]] * 3 + [[2, 3]] * 3
        assert wiring.layers["2"].outgoing[0].unit[..., 0, 0].tolist() == [[u] for u in range(6)]

    def test_a_noisy_layer_has_two_producers(self):
        wiring = find_wiring(nn.Sequential(Noisy(4, 6), nn.ReLU(), Noisy(6, 2)), torch.rand(2, 4))
        (units,) = wiring.layers.values()
        assert [e.parameter for e in units.incoming if "weight" in e.parameter] == [
            "0.mu.weight",
            "0.sigma.weight",
        ]
        assert [e.parameter for e in units.outgoing] == ["2.mu.weight", "2.sigma.weight"]

    def test_the_model_and_the_random_state_stay_as_they_were(self):
        model = build(conv)
        before, state = torch.get_rng_state(), copy.deepcopy(model.state_dict())
        find_wiring(model, INPUTS)
        assert torch.equal(torch.get_rng_state(), before)
        assert model.training
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
        assert all(not m._forward_hooks for m in model.modules())

    def test_dead_and_zero_weights_hide_nothing(self):
        model = build(mlp)
        for p in model.parameters():
            nn.init.zeros_(p)
        assert list(find_wiring(model, INPUTS).layers) == ["0", "2"]

    @pytest.mark.parametrize(
        ("model", "layer", "reason"),
        [
            (Residual(), "stem", "no activation module"),
            (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1), nn.Linear(4, 2)), "0", "mixtures"),
            (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Tanh(), nn.Linear(4, 2)), "0", "2 also reads 1"),
            (nn.Sequential(nn.Linear(4, 4), nn.GLU(), nn.Linear(2, 2)), "0", "shape"),
            (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "0", "output"),
        ],
    )
    def test_what_cannot_be_established_is_an_error_by_name(self, model, layer, reason):
        wiring = find_wiring(model, torch.rand(3, 4))
        assert reason in wiring.problems[layer]
        with pytest.raises(ValueError, match=f"{layer}: .*skip="):
            wiring.without(())

    def test_skip_connections_tied_and_repeated_layers(self):
        class Skip(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.relu = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()

            def forward(self, x):
                return self.b(x + self.relu(self.a(x)))

        assert "the model's input" in find_wiring(Skip(), torch.rand(3, 4)).problems["a"]
        tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        tied[2].weight = tied[0].weight
        assert "tied" in find_wiring(tied, torch.rand(3, 4)).problems["0"]
        layer = nn.Linear(4, 4)
        twice = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(4, 2))
        assert "more than once" in find_wiring(twice, torch.rand(3, 4)).problems["0"]

    def test_skipping_is_explicit(self):
        model = Residual()
        with pytest.raises(ValueError, match=r"'down'.*skip"):
            ReDo().prepare_(model, torch.rand(3, 4))
        redo = ReDo(skip=["stem", "down"])
        redo.prepare_(model, torch.rand(3, 4))
        assert list(redo.plan.layers) == ["up"]
        assert "stem  left alone" in str(redo.plan)
        with pytest.raises(ValueError, match="nope"):
            ReDo(skip=["stem", "down", "nope"]).prepare_(model, torch.rand(3, 4))
        ReDo(skip="unwired").prepare_(model, torch.rand(3, 4))
