"""No false alarm on networks that learn, and what a diagnosis leaves behind: nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from healthy_nets import HEALTHY, made, moments, on_digits
from nap.diagnostics.doctor import THRESHOLDS, diagnose, diagnose_log
from nap.integrations.monitor import Monitor


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_networks_raise_no_alarm(name: str) -> None:
    """After 0, 50 and 500 updates, alone and beside the start, and from the monitor's log."""
    setup = made(name)
    rows: list[dict[str, float]] = []
    Monitor(setup.model, setup.probe, rows.append, every=50).attach(setup.optimizer)
    first = None
    for updates in moments(setup):
        for start in (None, first):
            found = diagnose(setup.model, setup.optimizer, setup.probe, loss=setup.loss, start=start)
            assert found.findings == (), f"after {updates} updates: {found}"
        first = first or found
        assert diagnose_log(rows).findings == ()
    assert first is not None
    assert setup.loss(setup.model.eval()(setup.probe)).item() < first.numbers["loss"]  # it does learn


def test_a_diagnosis_changes_nothing() -> None:
    setup = made("CNN, BatchNorm, NaP")
    setup.train(20)
    x, y = setup.batches()
    nn.functional.cross_entropy(setup.model(x), y).backward()
    gradients = [p.grad.clone() for p in setup.model.parameters() if p.grad is not None]
    state, moments_ = copy.deepcopy(setup.model.state_dict()), copy.deepcopy(setup.optimizer.state_dict())
    random = torch.random.get_rng_state()
    diagnose(setup.model, setup.optimizer, setup.probe, loss=setup.loss)
    assert torch.equal(random, torch.random.get_rng_state())
    assert setup.model.training
    after = [p.grad for p in setup.model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(gradients, after, strict=True))
    assert all(torch.equal(state[key], value) for key, value in setup.model.state_dict().items())
    now = setup.optimizer.state_dict()["state"]
    for key, held in moments_["state"].items():
        assert all(torch.equal(torch.as_tensor(held[k]), torch.as_tensor(now[key][k])) for k in held)
    hooks = [len(m._forward_hooks) for m in setup.model.modules()]
    diagnose(setup.model, setup.optimizer, setup.probe)
    assert hooks == [len(m._forward_hooks) for m in setup.model.modules()]


def test_what_could_not_be_looked_at_is_said() -> None:
    setup = made("MLP")
    found = diagnose(setup.model, setup.optimizer, setup.probe[:8])
    assert found.not_looked_at["dead and linearized units"] == "the batch has fewer than 32 inputs"
    assert "loss=" in found.not_looked_at["gradients, and layers that have none"]
    assert "bounded activation" in found.not_looked_at["saturated activations"]
    assert "Not looked at:" in str(found)


def test_a_network_of_functions_is_looked_at_as_far_as_it_goes() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 10, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).relu().flatten(1)

    setup = on_digits(Functional(), shape=(1, 8, 8))
    found = diagnose(setup.model, setup.optimizer, setup.probe, loss=setup.loss)
    assert found.healthy
    assert "Recorder(model, layers=[...])" in found.not_looked_at["dead and linearized units"]


def test_optimizers_without_an_effective_rate_are_said_to_have_none() -> None:
    setup = made("MLP")
    found = diagnose(setup.model, torch.optim.Rprop(setup.model.parameters()), setup.probe, loss=setup.loss)
    assert "Rprop" in found.not_looked_at["size of the steps"]


def test_a_loss_that_is_no_number_is_refused() -> None:
    setup = made("MLP")
    with pytest.raises(ValueError, match="take its mean"):
        diagnose(setup.model, setup.optimizer, setup.probe, loss=lambda out: out)


def test_every_limit_has_a_reason() -> None:
    assert all(threshold.why and threshold.of for threshold in THRESHOLDS.values())
