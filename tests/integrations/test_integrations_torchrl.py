"""`nap.integrations.torchrl` with TorchRL's loss modules: DQN, PPO, SAC and TD3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

pytest.importorskip("torchrl", reason="pip install 'normalize-and-project[integrations]'")

from tensordict import TensorDict
from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
from torchrl.data import Bounded, OneHot
from torchrl.modules import MLP, ProbabilisticActor, QValueActor, TanhModule, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss, DQNLoss, SACLoss, SoftUpdate, TD3Loss

import nap
from nap.integrations.torchrl import follow, networks_of, normalize_

SPEC = Bounded(-1, 1, (2,))


def mlp(inputs: int, outputs: int) -> nn.Module:
    return MLP(in_features=inputs, out_features=outputs, num_cells=[16, 16], activation_class=nn.ReLU)


def gaussian() -> Any:
    net = nn.Sequential(mlp(4, 4), NormalParamExtractor())
    module = TensorDictModule(net, ["observation"], ["loc", "scale"])
    keys = ["loc", "scale"]
    more = {"distribution_class": TanhNormal, "return_log_prob": True}
    return ProbabilisticActor(module, in_keys=keys, spec=SPEC, **more)


def value() -> Any:
    return ValueOperator(mlp(4, 1), in_keys=["observation"])


def critic() -> Any:
    return ValueOperator(mlp(6, 1), in_keys=["observation", "action"])


def deterministic() -> Any:
    module = TensorDictModule(mlp(4, 2), ["observation"], ["raw"])
    return TensorDictSequential(module, TanhModule(in_keys=["raw"], out_keys=["action"], spec=SPEC))


def batch(discrete: bool = False) -> TensorDict:
    action = torch.eye(2)[torch.randint(2, (8,))] if discrete else torch.rand(8, 2) * 1.8 - 0.9
    then = {"observation": torch.randn(8, 4), "reward": torch.randn(8, 1)}
    flags = {key: torch.zeros(8, 1, dtype=torch.bool) for key in ("done", "terminated")}
    now = {"observation": torch.randn(8, 4), "action": action, "action_log_prob": torch.zeros(8)}
    return TensorDict({**now, "next": TensorDict({**then, **flags}, [8])}, [8])


def dqn() -> Any:
    actor = QValueActor(mlp(4, 2), in_keys=["observation"], spec=OneHot(2))
    normalize_(actor, batch())
    return DQNLoss(actor, action_space="one-hot", delay_value=True)


def ppo() -> Any:
    actor, critic = gaussian(), value()
    normalize_(actor, batch())
    normalize_(critic, batch())
    return ClipPPOLoss(actor, critic)


def sac() -> Any:
    actor, q = gaussian(), critic()
    normalize_(actor, batch())
    normalize_(q, batch())
    return SACLoss(actor, q, num_qvalue_nets=2)


def td3() -> Any:
    actor, q = deterministic(), critic()
    normalize_(actor, batch())
    normalize_(q, batch())
    return TD3Loss(actor, q, action_spec=SPEC, num_qvalue_nets=2)


NETWORKS = {
    dqn: ["value_network"],
    ppo: ["actor_network", "critic_network"],
    sac: ["actor_network", "qvalue_network_0", "qvalue_network_1"],
    td3: ["actor_network", "qvalue_network_0", "qvalue_network_1"],
}


def weights(loss: Any) -> dict[str, Tensor]:
    """Matrices that the loss trains; stacks of critics are three-dimensional."""
    trained = loss.named_parameters()
    return {name: p.detach() for name, p in trained if name.endswith("weight") and "norm" not in name}


def norms(loss: Any) -> dict[str, Tensor]:
    return {name: w.flatten(-2).norm(dim=-1) for name, w in weights(loss).items() if w.ndim > 1}


def update(loss: Any, optimizer: Any, data: TensorDict) -> None:
    found = loss(data)
    total: Any = sum(value for key, value in found.items() if key.startswith("loss"))
    optimizer.zero_grad()
    total.backward()
    optimizer.step()


@pytest.mark.parametrize("make", NETWORKS)
def test_what_a_loss_trains_stays_on_its_radii(make: Any) -> None:
    torch.manual_seed(0)
    loss = make()
    loss.make_value_estimator()
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.01)
    projector = follow(loss, optimizer, output="free")
    assert [name for name, _ in networks_of(loss)] == NETWORKS[make]
    assert len(projector.plan.names("project")) == 2 * len(NETWORKS[make])
    target = SoftUpdate(loss, eps=0.9) if make is not ppo else None
    before = norms(loss)
    data = batch(discrete=make is dqn)
    for _ in range(10):
        update(loss, optimizer, data)
        if target is not None:
            target.step()
    after = norms(loss)
    hidden = [name for name in before if not name.endswith("4.weight")]
    assert len(hidden) < len(before)
    for name in before:
        if name in hidden:
            assert_close(after[name], before[name], rtol=1e-5, atol=0)
        else:  # the output is free: it moved
            assert (after[name] - before[name]).abs().max() > 1e-3


def test_a_stack_of_critics_is_projected_one_by_one() -> None:
    """The same as a projector of each critic by itself."""
    torch.manual_seed(0)
    loss = sac()
    stack = loss.qvalue_network_params["module", "0", "weight"]
    alone = [nn.Parameter(stack.data[i].clone()) for i in range(2)]
    radii = [weight.data.norm() for weight in alone]
    projector = follow(loss, torch.optim.SGD(loss.parameters(), lr=0.1))
    with torch.no_grad():
        stack.data.add_(torch.randn_like(stack))
        expected = [stack.data[i] / stack.data[i].norm() * radii[i] for i in range(2)]
    projector.project_()
    assert_close(stack.data, torch.stack(expected))


def test_the_loss_reads_the_norms() -> None:
    """Weights ten times as large do not change what a converted network says."""
    torch.manual_seed(0)
    loss, data = dqn(), batch(discrete=True)
    loss.make_value_estimator()
    SoftUpdate(loss, eps=0.9)
    before = loss(data)["loss"]
    loss.value_network_params["module", "0", "module", "0", "weight"].data.mul_(10)
    loss.target_value_network_params["module", "0", "module", "0", "weight"].data.mul_(10)
    assert_close(loss(data)["loss"], before)


def test_radii_come_back_with_the_state() -> None:
    torch.manual_seed(0)
    loss = sac()
    projector = follow(loss, torch.optim.Adam(loss.parameters()))
    state = projector.state_dict()
    with torch.no_grad():
        for weight in weights(loss).values():
            weight.mul_(2)
    again = follow(loss, torch.optim.Adam(loss.parameters()))
    again.load_state_dict(state)
    again.project_()
    radius = projector.state_dict()["radii"]
    assert all(torch.equal(radius[name], r) for name, r in again.state_dict()["radii"].items())


def test_a_single_network_needs_no_integration() -> None:
    """`Projector` of the actor itself: its parameters are those of the loss."""
    torch.manual_seed(0)
    actor = QValueActor(mlp(4, 2), in_keys=["observation"], spec=OneHot(2))
    normalize_(actor, batch())
    loss = DQNLoss(actor, action_space="one-hot", delay_value=True)
    loss.make_value_estimator()
    SoftUpdate(loss, eps=0.9)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.01)
    projector = nap.Projector(actor, output="free").attach(optimizer)
    before = norms(loss)
    update(loss, optimizer, batch(discrete=True))
    after = norms(loss)
    assert len(projector.plan.names("project")) == 2
    name = "value_network_params.module.0.module.2.weight"
    assert_close(after[name], before[name])


def test_no_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="no network that this loss trains"):
        follow(mlp(4, 2), torch.optim.SGD(mlp(4, 2).parameters()))
    with pytest.raises(ValueError, match="no optimizer"):
        follow(dqn())
