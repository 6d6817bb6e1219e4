"""Mitigation methods: one contract for all of them, then the exact claim of each."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from nap.conversion.normalize import normalize_
from nap.methods import (
    L2,
    ConcatenatedReLU,
    ContinualBackprop,
    CReLU,
    L2Init,
    Langevin,
    LeakyReLU,
    Method,
    ReDo,
    ShrinkAndPerturb,
    Training,
    WeightDecay,
    find_wiring,
)
from nap.methods.draws import fresh_like, normal_like
from nap.methods.resets import activity_of, reset_units_
from nap.projection.project import Projector
from nap.weights import Role


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def mlp():
    return nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))


def conv():
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)),
        nn.Upsample(scale_factor=4),
        nn.Conv2d(3, 6, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 3 * 3, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )


def two_convs():
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)),
        nn.Conv2d(3, 6, 1),
        nn.ReLU(),
        nn.Conv2d(6, 5, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 2 * 2, 3),
    )


def layer_norm():
    return nn.Sequential(nn.Linear(12, 10), nn.LayerNorm(10), nn.ReLU(), nn.Linear(10, 3))


def batch_norm():
    return nn.Sequential(nn.Linear(12, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))


def nap_conv():
    model = conv()
    normalize_(model, torch.randn(4, 12, generator=generator()))
    return model


NETS = [mlp, conv, two_convs, layer_norm, batch_norm, nap_conv]

METHODS = {
    "none": Method,
    "l2": lambda: L2(1e-3),
    "l2-init": lambda: L2Init(1e-3),
    "weight decay": lambda: WeightDecay(0.1),
    "shrink and perturb": lambda: ShrinkAndPerturb(0.9, 0.1),
    "shrink and perturb often": lambda: ShrinkAndPerturb(0.999, 0.01, every=2),
    "langevin": lambda: Langevin(std=1e-3),
    "langevin temperature": lambda: Langevin(temperature=1e-6),
    "redo": lambda: ReDo(tau=0.8, every=3),
    "continual backprop": lambda: ContinualBackprop(0.05, maturity=3),
    "leaky relu": lambda: LeakyReLU(0.1),
    "crelu": CReLU,
}
NO_OPS = {
    "none": Method,
    "l2": lambda: L2(0.0),
    "l2-init": lambda: L2Init(0.0),
    "weight decay": lambda: WeightDecay(0.0),
    "shrink and perturb": lambda: ShrinkAndPerturb(1.0, 0.0, every=1),
    "langevin": lambda: Langevin(std=0.0),
    "redo": lambda: ReDo(every=10**6),
    "continual backprop": lambda: ContinualBackprop(0.0),
    "leaky relu": lambda: LeakyReLU(0.0),
}
# CReLU goes before nap.normalize_ (there is a test of that below); the others may come after it.
PAIRS = [(net, name) for net in NETS for name in METHODS if (net, name) != (nap_conv, "crelu")]
ACTING = [(net, name) for net, name in PAIRS if name != "none"]
STACKABLE = [(net, name) for net, name in PAIRS if name not in ("leaky relu", "crelu")]
STATEFUL = [
    (net, name) for net in NETS for name in ("shrink and perturb often", "redo", "continual backprop")
]

INPUTS = torch.randn(16, 12, generator=generator(5), dtype=torch.float64)
LABELS = torch.arange(16) % 3


def build(net, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return net().double()


def train(net, make, *, seed=0, steps=8, optimizer=torch.optim.Adam):
    """A trained model, its method and its run: two tasks, one method, everything in place."""
    model, method, draws = build(net), make(), generator(seed)
    method.prepare_(model, INPUTS, generator=draws)
    opt = optimizer(model.parameters(), lr=1e-2)
    run = Training.of(model, opt, generator=draws)
    for step in range(steps):
        opt.zero_grad()
        loss = F.cross_entropy(model(INPUTS), LABELS) + method.penalty(run.parameters, run.initial)
        loss.backward()
        method.before_step_(run)
        opt.step()
        method.after_step_(run, INPUTS)
        if step == steps // 2:
            method.at_task_change_(run)
    return model, method, run


class TestContract:
    @pytest.mark.parametrize(("net", "name"), PAIRS)
    def test_trains_and_repeats_itself(self, net, name):
        model, _, _ = train(net, METHODS[name])
        again, _, _ = train(net, METHODS[name])
        for (key, theta), twin in zip(model.named_parameters(), again.parameters(), strict=True):
            assert theta.isfinite().all(), key
            assert theta.dtype == torch.float64
            assert torch.equal(theta, twin), key

    @pytest.mark.parametrize(("net", "name"), ACTING)
    def test_does_something(self, net, name):
        model, _, _ = train(net, METHODS[name])
        plain, _, _ = train(net, Method)
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in pairs)

    @pytest.mark.parametrize("net", NETS)
    @pytest.mark.parametrize("name", NO_OPS)
    def test_no_op_settings_change_nothing(self, net, name):
        model, _, _ = train(net, NO_OPS[name])
        plain, _, _ = train(net, Method)
        for theta, reference in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(theta, reference)

    @pytest.mark.parametrize(("net", "name"), STACKABLE)
    def test_a_population_equals_its_single_runs(self, net, name):
        """One step of everything on three stacked networks, against three separate ones."""
        members = [build(net, seed) for seed in range(3)]
        single, runs = [], []
        for k, model in enumerate(members):
            method = METHODS[name]()
            method.prepare_(model, INPUTS, generator=generator(k))
            opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            runs.append(Training.of(model, opt, generator=generator(k)))
            single.append(method)
        method = METHODS[name]()
        method.prepare_(members[0], INPUTS)
        names = list(runs[0].parameters)

        def stack(of):
            return {n: torch.stack([getattr(r, of)[n].detach() for r in runs]) for n in names}

        moments = {n: [torch.ones_like(t)] for n, t in stack("parameters").items()}
        run = Training(
            copy.deepcopy(members[0]),
            stack("parameters"),
            stack("initial"),
            learning_rate=lambda n: 0.1,
            moments=lambda n: moments[n],
            generator=[generator(k) for k in range(3)],
            stacked=True,
            shared_batch=True,
        )
        penalty = method.penalty(run.parameters, run.initial, stacked=True)
        assert_close(
            penalty,
            torch.stack(
                [m.penalty(r.parameters, r.initial) for m, r in zip(single, runs, strict=True)]
            ).detach(),
        )
        for _ in range(4):
            for m, r in [*zip(single, runs, strict=True), (method, run)]:
                m.before_step_(r)
                m.after_step_(r, INPUTS)
                m.at_task_change_(r)
        for n, theta in run.parameters.items():
            assert_close(theta, torch.stack([r.parameters[n] for r in runs]).detach(), msg=n)

    @pytest.mark.parametrize(("net", "name"), STATEFUL)
    def test_state_resumes(self, net, name):
        _, method, run = train(net, METHODS[name], steps=5)
        twin = METHODS[name]()
        twin.prepare_(run.model, INPUTS)
        twin.load_state_dict(copy.deepcopy(method.state_dict()))
        model = copy.deepcopy(run.model)
        draws = generator()
        draws.set_state(run.generator.get_state())
        other = Training.of(model, torch.optim.SGD(model.parameters(), lr=0.1), generator=draws)
        other = replace(other, initial=run.initial)
        for _ in range(4):
            method.after_step_(run, INPUTS)
            twin.after_step_(other, INPUTS)
        for theta, reference in zip(model.parameters(), run.model.parameters(), strict=True):
            assert torch.equal(theta, reference)


class TestFrozenParameters:
    @pytest.mark.parametrize("name", [name for name in METHODS if "relu" not in name])
    def test_no_method_changes_them(self, name):
        model, method = build(mlp), METHODS[name]()
        frozen = {k: p for k, p in model.named_parameters() if k in ("0.bias", "4.bias")}
        for p in frozen.values():
            p.requires_grad_(False)
        before = {k: p.clone() for k, p in frozen.items()}
        method.prepare_(model, INPUTS)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        run = Training.of(model, opt, generator=generator())
        assert not set(run.parameters) & set(frozen)
        for _ in range(8):
            opt.zero_grad()
            stepped_loss = F.cross_entropy(model(INPUTS), LABELS)
            (stepped_loss + method.penalty(run.parameters, run.initial)).backward()
            method.before_step_(run)
            opt.step()
            method.after_step_(run, INPUTS)
            method.at_task_change_(run)
        for k, p in frozen.items():
            assert torch.equal(p, before[k]), k

    def test_resets_go_on_around_a_frozen_bias(self):
        model = build(mlp)
        model[0].bias.requires_grad_(False)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=0.1), generator=generator())
        bias, row = model[0].bias.clone(), model[0].weight[3].detach().clone()
        reset_units_(run, find_wiring(model, INPUTS), {"0": torch.arange(10) == 3})
        assert torch.equal(model[0].bias, bias)
        assert not torch.equal(model[0].weight[3], row)

    @pytest.mark.parametrize("make", [lambda: ReDo(every=1000), lambda: ContinualBackprop(0.1)])
    @pytest.mark.parametrize("layer", [0, 4])  # weights into units, and out of them
    def test_a_frozen_weight_of_units_is_an_error_at_the_first_update(self, make, layer):
        model, method = build(mlp), make()
        model[layer].weight.requires_grad_(False)
        method.prepare_(model, INPUTS)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=0.1), generator=generator())
        with pytest.raises(ValueError, match=rf"{layer}\.weight .* is frozen; unfreeze it"):
            method.after_step_(run, INPUTS)

    def test_a_model_that_is_frozen_altogether_has_no_training(self):
        model = build(mlp).requires_grad_(False)
        with pytest.raises(ValueError, match="trains no parameter of Sequential"):
            Training.of(model, torch.optim.SGD(model.parameters(), lr=0.1), generator=generator())


class TestOrder:
    @pytest.mark.parametrize("make", [lambda: ReDo(every=1000), lambda: ContinualBackprop(0.1)])
    def test_units_found_before_normalize_are_an_error_with_a_way_out(self, make):
        model, method = build(mlp), make()
        method.prepare_(model, INPUTS)
        normalize_(model, INPUTS)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=0.1), generator=generator())
        with pytest.raises(ValueError, match=r"0\.bias is gone .* prepare_ after nap\.normalize_"):
            method.after_step_(run, INPUTS)
        method.prepare_(model, INPUTS)
        method.after_step_(run, INPUTS)


class TestDraws:
    def test_fresh_values_come_from_the_initial_ones_of_each_member(self):
        initial = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]])
        fresh = fresh_like(initial, generator(), stacked=True)
        assert set(fresh[0].tolist()) <= set(initial[0].tolist())
        assert set(fresh[1].tolist()) <= set(initial[1].tolist())

    def test_fresh_values_have_the_initial_distribution(self):
        initial = torch.empty(200, 300).uniform_(-0.2, 0.2, generator=generator(1))
        fresh = fresh_like(initial, generator(2))
        assert not torch.equal(fresh, initial)
        assert_close(fresh.std(), initial.std(), rtol=0.02, atol=0)
        assert fresh.mean().abs() < 0.002

    def test_one_generator_per_member(self):
        tensor = torch.zeros(2, 5)
        both = normal_like(tensor, [generator(1), generator(2)])
        assert torch.equal(both[1], normal_like(tensor[1], generator(2)))


class TestPenalties:
    def test_gradients(self):
        theta = torch.randn(3, 4, dtype=torch.float64, generator=generator(), requires_grad=True)
        start = torch.randn(3, 4, dtype=torch.float64, generator=generator(1))
        (pull,) = torch.autograd.grad(L2Init(0.3).penalty({"w": theta}, {"w": start}), theta)
        assert_close(pull, 0.6 * (theta - start).detach())
        (pull,) = torch.autograd.grad(L2(0.3).penalty({"w": theta}, {"w": start}), theta)
        assert_close(pull, 0.6 * theta.detach())

    def test_l2_is_half_the_weight_decay_of_sgd(self):
        model, _, _ = train(mlp, lambda: L2(0.05), optimizer=torch.optim.SGD)
        decayed, _, _ = train(mlp, Method, optimizer=lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1))
        for theta, reference in zip(model.parameters(), decayed.parameters(), strict=True):
            assert_close(theta, reference)

    def test_roles_choose_parameters(self):
        model = build(layer_norm)
        l2 = L2(1.0, roles=[Role.WEIGHT])
        with pytest.raises(ValueError, match="prepare_"):
            l2.penalty(dict(model.named_parameters()), {})
        l2.prepare_(model)
        expected = model[0].weight.square().sum() + model[3].weight.square().sum()
        assert_close(l2.penalty(dict(model.named_parameters()), {}), expected)
        with pytest.raises(ValueError, match="roles"):
            L2(1.0, roles=[Role.EMBEDDING]).prepare_(model)


class TestShrinking:
    def test_decoupled_decay_is_adamw(self):
        model, _, _ = train(mlp, lambda: WeightDecay(0.1))
        adamw, _, _ = train(mlp, Method, optimizer=lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1))
        for theta, reference in zip(model.parameters(), adamw.parameters(), strict=True):
            assert_close(theta, reference, rtol=1e-14, atol=0)

    def test_each_group_decays_at_its_own_rate(self):
        model = build(mlp)
        groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters()}]
        run = Training.of(model, torch.optim.SGD(groups, lr=0.1), generator=generator())
        WeightDecay(1.0).before_step_(run)
        assert_close(model[0].weight, 0.5 * run.initial["0.weight"])
        assert_close(model[2].weight, 0.9 * run.initial["2.weight"])
        assert "4.weight" not in run.parameters

    def test_shrink_and_perturb_statistics(self):
        model = nn.Linear(300, 300, bias=False).double()
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=1.0), generator=generator())
        before = run.initial["weight"]
        ShrinkAndPerturb(0.4, 0.2).at_task_change_(run)
        noise = model.weight.detach() - 0.4 * before
        assert_close(noise.std(), 0.2 * before.std(), rtol=0.02, atol=0)
        assert noise.abs().max() <= 0.2 * before.abs().max() * (1 + 1e-9)  # uniform stays uniform
        correlation = torch.corrcoef(torch.stack([noise.flatten(), before.flatten()]))[0, 1]
        assert correlation.abs() < 0.02

    def test_when(self):
        model = nn.Linear(2, 2)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=1.0), generator=generator())
        often = ShrinkAndPerturb(0.5, 0.0, every=3)
        for _ in range(7):
            often.after_step_(run)
            often.at_task_change_(run)
        assert_close(model.weight.detach(), 0.25 * run.initial["weight"])


class TestNoise:
    @pytest.mark.parametrize(("method", "std"), [(Langevin(std=0.3), 0.3), (Langevin(temperature=0.5), 0.1)])
    def test_standard_deviation(self, method, std):
        model = nn.Linear(300, 300)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=0.01), generator=generator())
        method.after_step_(run)
        noise = model.weight.detach() - run.initial["weight"]
        assert noise.std().item() == pytest.approx(std, rel=0.02)
        assert abs(noise.mean().item()) < 0.01 * std + 1e-3

    def test_exactly_one_setting(self):
        with pytest.raises(ValueError, match="exactly one"):
            Langevin()


class Branches(nn.Module):
    """Two layers concatenated with an input, one shared ReLU, and a reader of both."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 5), nn.Linear(4, 3), nn.Linear(10, 2)
        self.relu = nn.ReLU()

    def forward(self, x, action):
        return self.head(torch.cat([self.relu(self.left(x)), self.relu(self.right(x)), action], -1))


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


def kill_(model, layer, units):
    """Makes some units of a Linear or convolution negative on every input, so dead behind a ReLU."""
    with torch.no_grad():
        model[layer].weight[units] = 0
        model[layer].bias[units] = -1


def stepped(model, optimizer):
    F.cross_entropy(model(INPUTS), LABELS).backward()
    optimizer.step()


class TestReDo:
    @pytest.mark.parametrize(("net", "layer"), [(mlp, 0), (mlp, 2), (conv, 2), (conv, 6)])
    def test_a_dead_units_reset_keeps_the_function(self, net, layer):
        model = build(net).eval()
        kill_(model, layer, [1, 4])
        redo = ReDo(tau=0.0, every=1)
        redo.prepare_(model, INPUTS)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=0.1), generator=generator())
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        dead = {k: (a == 0) for k, a in _activity(run, redo).items()}
        outputs = model(INPUTS)
        redo.after_step_(run, INPUTS)
        # The same function exactly; the matrix products round alike, for zeros took part before too.
        assert_close(model(INPUTS), outputs, rtol=0, atol=1e-14)
        rows = (model[layer].weight != before[f"{layer}.weight"]).flatten(1).any(1)
        assert rows.tolist() == dead[str(layer)].tolist()
        assert rows[[1, 4]].all()

    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "amsgrad", "adamw", "groups"])
    def test_moments_are_reset_where_due_and_nowhere_else(self, optimizer):
        model = build(conv)
        p = list(model.parameters())
        groups: list[dict[str, Any]] = [{"params": p[:3]}, {"params": p[3:], "lr": 1e-4}]
        opt = {
            "sgd": lambda: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
            "adam": lambda: torch.optim.Adam(p, lr=1e-3),
            "amsgrad": lambda: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
            "adamw": lambda: torch.optim.AdamW(p, lr=1e-3),
            "groups": lambda: torch.optim.Adam(groups, lr=1e-3),
        }[optimizer]()
        run = Training.of(model, opt, generator=generator())
        stepped(model, opt)
        for state in opt.state.values():
            for value in state.values():
                if torch.is_tensor(value) and value.ndim:
                    value.fill_(1.0)
        steps = [float(state["step"]) for state in opt.state.values() if "step" in state]
        wiring = find_wiring(model, INPUTS)
        chosen = torch.zeros(6, dtype=torch.bool)
        chosen[[0, 3]] = True
        reset_units_(run, wiring, {"2": chosen})
        expected = {name: torch.ones_like(theta) for name, theta in run.parameters.items()}
        expected["2.weight"][chosen] = 0
        expected["2.bias"][chosen] = 0
        expected["6.weight"].view(8, 6, 9)[:, chosen] = 0
        for name, theta in run.parameters.items():
            moments = [v for v in opt.state[theta].values() if torch.is_tensor(v) and v.ndim]
            assert len(moments) == {"sgd": 1, "amsgrad": 3}.get(optimizer, 2)
            for moment in moments:
                assert torch.equal(moment, expected[name]), name
        assert steps == [float(state["step"]) for state in opt.state.values() if "step" in state]

    def test_only_the_chosen_units_change(self):
        model = build(layer_norm)
        with torch.no_grad():
            model[1].weight.fill_(3.0)
            model[1].bias.fill_(-2.0)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=1.0), generator=generator())
        fresh_norm = {"1.weight": torch.ones(10).double(), "1.bias": torch.zeros(10).double()}
        run = replace(run, initial={**run.initial, **fresh_norm})
        before = run.initial["0.weight"]
        chosen = torch.arange(10) == 7
        reset_units_(run, find_wiring(model, INPUTS), {"0": chosen})
        assert torch.equal(model[0].weight[~chosen], before[~chosen])
        assert not torch.equal(model[0].weight[chosen], before[chosen])
        assert model[1].weight.tolist() == [3.0] * 7 + [1.0] + [3.0] * 2
        assert model[1].bias.tolist() == [-2.0] * 7 + [0.0] + [-2.0] * 2
        assert (model[3].weight == 0).all(0).tolist() == chosen.tolist()

    def test_revived_units_live_and_learn(self):
        model = build(mlp)
        kill_(model, 0, list(range(5)))
        redo = ReDo(every=1)
        redo.prepare_(model, INPUTS)
        opt = torch.optim.Adam(model.parameters(), lr=1e-2)
        # Initial values are those of a healthy network, as they are in a real run.
        run = replace(
            Training.of(model, opt, generator=generator()), initial=dict(build(mlp).named_parameters())
        )
        redo.after_step_(run, INPUTS)
        assert _activity(run, redo)["0"][:5].min() > 0
        outgoing = model[2].weight[:, :5].detach().clone()
        assert (outgoing == 0).all()
        stepped(model, opt)
        assert (model[2].weight[:, :5] != 0).any()

    def test_a_dead_layer_leaves_a_weight_of_zero_until_the_next_step(self):
        model = build(mlp)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        projector = Projector(model).attach(opt)
        run = Training.of(model, opt, generator=generator())
        kill_(model, 0, list(range(10)))
        redo = ReDo(every=1)
        redo.prepare_(model, INPUTS)
        redo.after_step_(run, INPUTS)
        projector.project_()
        assert model[2].weight.count_nonzero() == 0  # as it is: no direction, no NaN
        with torch.no_grad():
            model[2].bias.fill_(1.0)  # units of layer 2 that pass a gradient on
        stepped(model, opt)
        assert projector.norm_ratios() == pytest.approx(dict.fromkeys(projector.norm_ratios(), 1.0))

    def test_refusals(self):
        model = build(mlp)
        redo = ReDo(every=1)
        with pytest.raises(ValueError, match="prepare_"):
            print(redo.plan)
        redo.prepare_(model, INPUTS)
        opt = torch.optim.Adagrad(model.parameters())
        run = Training.of(model, opt, generator=generator())
        with pytest.raises(ValueError, match="after_step_"):
            redo.after_step_(run)
        with pytest.raises(ValueError, match="Adagrad keeps 'sum'"):
            redo.after_step_(run, INPUTS)
        frozen = Training.of(model, torch.optim.SGD(model[4].parameters(), lr=0.1), generator=generator())
        with pytest.raises(ValueError, match="optimizer does not train it"):
            redo.after_step_(frozen, INPUTS)


def _activity(run, method):
    return activity_of(run, method.plan, INPUTS)


class TestContinualBackprop:
    def test_replaces_the_least_useful_mature_unit_at_the_stated_rate(self):
        model = build(mlp)
        with torch.no_grad():
            model[2].weight[:, 6] = 1e-9  # what nobody listens to is useless
        method = ContinualBackprop(0.01, maturity=20, skip=["2"])
        method.prepare_(model, INPUTS)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=0.1), generator=generator())
        replaced = []
        for update in range(1, 62):
            before = model[0].weight.detach().clone()
            method.after_step_(run, INPUTS)
            changed = (model[0].weight != before).any(1).nonzero().flatten().tolist()
            replaced += [(update, unit) for unit in changed]
        # Mature from update 21 on; 10 units × 0.01 save up one replacement in ten updates, and the
        # nine (then eight) that stay mature after it one in twelve.
        assert replaced[0] == (30, 6)
        assert [update for update, _ in replaced] == [30, 42, 54]

    def test_new_units_are_safe_until_mature(self):
        method = ContinualBackprop(1.0, maturity=5)
        model = build(mlp)
        method.prepare_(model, INPUTS)
        run = Training.of(model, torch.optim.SGD(model.parameters(), lr=0.1), generator=generator())
        changes = []
        for _ in range(12):
            before = model[0].weight.detach().clone()
            method.after_step_(run, INPUTS)
            changes.append(not torch.equal(before, model[0].weight))
        assert [i + 1 for i, changed in enumerate(changes) if changed] == [6, 12]


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


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: L2(-1.0), "strength"),
        (lambda: L2Init(float("nan")), "strength"),
        (lambda: WeightDecay(-0.1), "rate"),
        (lambda: ShrinkAndPerturb(1.5, 0.1), "shrink"),
        (lambda: ShrinkAndPerturb(0.5, 0.1, every=0), "every"),
        (lambda: Langevin(std=-1.0), "std"),
        (lambda: ReDo(every=0), "every"),
        (lambda: ContinualBackprop(2.0), "replacement_rate"),
        (lambda: LeakyReLU(-1.0), "slope"),
    ],
)
def test_bad_settings_are_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()
