"""The contract that all mitigation methods keep, whatever the net they are used on."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from method_nets import INPUTS, LABELS, NETS, build, generator, mlp, nap_conv, train
from nap.conversion.normalize import normalize_
from nap.methods import (
    L2,
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
from nap.methods.resets import reset_units_

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
# CReLU goes before nap.normalize_ (tested in test_methods_activations.py); the others may come after it.
PAIRS = [(net, name) for net in NETS for name in METHODS if (net, name) != (nap_conv, "crelu")]
ACTING = [(net, name) for net, name in PAIRS if name != "none"]
STACKABLE = [(net, name) for net, name in PAIRS if name not in ("leaky relu", "crelu")]
STATEFUL = [
    (net, name) for net in NETS for name in ("shrink and perturb often", "redo", "continual backprop")
]


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
