"""Methods that reset units: ReDo and continual backprop."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from method_nets import INPUTS, LABELS, build, conv, generator, layer_norm, mlp
from nap.methods import ContinualBackprop, ReDo, Training, find_wiring
from nap.methods.resets import activity_of, reset_units_
from nap.projection.project import Projector


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

    @pytest.mark.filterwarnings("ignore:.*has no norms")
    def test_a_dead_layer_leaves_a_weight_of_zero_until_the_next_step(self):
        model = build(mlp)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        projector = Projector(model).attach(opt)
        run = Training.of(model, opt, generator=generator())
        kill_(model, 0, list(range(10)))
        redo = ReDo(every=1)
        redo.prepare_(model, INPUTS)
        redo.after_step_(run, INPUTS)
        with pytest.warns(UserWarning, match="2.weight: became zero"):
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
