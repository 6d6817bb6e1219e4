"""Methods that change the activations: LeakyReLU and CReLU."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from method_nets import INPUTS, Branches, batch_norm, build, conv, generator, layer_norm, mlp
from nap.conversion.normalize import normalize_
from nap.methods import ConcatenatedReLU, CReLU, LeakyReLU


class TestActivations:
    def test_leaky_zero_is_relu_and_the_slope_is_used(self):
        for net in (mlp, conv):
            model, swapped = build(net), build(net)
            LeakyReLU(0.0).prepare_(swapped, INPUTS)
            assert torch.equal(model(INPUTS), swapped(INPUTS))
        model = nn.Sequential(nn.Identity(), nn.ReLU())
        LeakyReLU(0.2).prepare_(model, INPUTS)
        assert torch.equal(model(INPUTS), F.leaky_relu(INPUTS, 0.2))

    def test_a_shared_relu_stays_shared(self):
        model = Branches()
        LeakyReLU().prepare_(model, (torch.rand(1, 4), torch.rand(1, 2)))
        assert isinstance(model.relu, nn.LeakyReLU)

    @pytest.mark.parametrize("net", [mlp, conv, layer_norm, batch_norm])
    def test_crelu_with_silent_new_columns_is_relu(self, net):
        model, widened = build(net).eval(), build(net).eval()
        CReLU().prepare_(widened, INPUTS, generator=generator())
        assert any(isinstance(m, ConcatenatedReLU) for m in widened)
        for old, new in zip(model, widened, strict=True):
            if isinstance(new, nn.Linear) and new.in_features != old.in_features:
                assert new.weight.shape == (old.out_features, 2 * old.in_features)
                assert_close(new.weight[:, : old.in_features], old.weight / 2**0.5)  # fan-in doubled
                with torch.no_grad():
                    new.weight.mul_(2**0.5)[:, old.in_features :] = 0
        assert_close(widened(INPUTS), model(INPUTS))

    @pytest.mark.parametrize(
        ("model", "shape"),
        [
            (nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3)), (5, 12, 3, 3)),
            (nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.ConvTranspose2d(6, 5, 3)), (12, 5, 3, 3)),
            (nn.Sequential(nn.ConvTranspose2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3)), (5, 12, 3, 3)),
            (nn.Sequential(nn.Conv2d(3, 6, 8), nn.ReLU(), nn.Flatten(), nn.Linear(6, 5)), (5, 12)),
        ],
    )
    def test_crelu_doubles_the_inputs_of_each_kind_of_reader(self, model, shape):
        images = torch.rand(2, 3, 8, 8)
        CReLU().prepare_(model, images, generator=generator())
        reader = model[-1]
        assert reader.weight.shape == shape
        assert getattr(reader, "in_features", getattr(reader, "in_channels", 0)) == 12
        assert model(images).shape[1] == 5

    def test_crelu_keeps_the_scale_of_an_initialisation(self):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 400), nn.ReLU(), nn.Linear(400, 200))
            reference = nn.Linear(800, 200)
        CReLU().prepare_(model, torch.rand(2, 4), generator=generator())
        weight = dict(model.named_parameters())["2.weight"]
        assert_close(weight[:, :400].std(), reference.weight.std(), rtol=0.02, atol=0)
        assert_close(weight[:, 400:].std(), reference.weight.std(), rtol=0.02, atol=0)

    def test_crelu_beside_other_inputs(self):
        model, args = Branches(), (torch.rand(3, 4), torch.rand(3, 2))
        CReLU().prepare_(model, args, generator=generator())
        assert model.head.in_features == 2 * 8 + 2
        assert model(*args).shape == (3, 2)

    def test_crelu_then_nap(self):
        model = build(conv)
        CReLU().prepare_(model, INPUTS, generator=generator())
        normalize_(model, INPUTS)
        assert model(INPUTS).isfinite().all()

    @pytest.mark.parametrize(
        ("model", "reason"),
        [
            (
                nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2)),
                "2 normalises the output of 1",
            ),
            (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "could not be established"),
            (nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "no nn.ReLU"),
        ],
    )
    def test_crelu_refuses_what_it_cannot_widen_and_changes_nothing(self, model, reason):
        before = str(model)
        with pytest.raises(ValueError, match=reason):
            CReLU().prepare_(model, torch.rand(2, 4), generator=generator())
        assert str(model) == before

    @pytest.mark.parametrize("method", [LeakyReLU(), CReLU()])
    def test_functional_relu_is_an_error_by_name(self, method):
        class Functional(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear, self.act = nn.Linear(4, 4), nn.ReLU()

            def forward(self, x):
                return F.relu(self.linear(self.act(x)))

        with pytest.raises(ValueError, match="as a function in \\['1'\\]"):
            method.prepare_(
                nn.Sequential(nn.Linear(4, 4), Functional()), torch.rand(1, 4), generator=generator()
            )
