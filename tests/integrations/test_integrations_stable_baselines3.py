"""`nap.integrations.stable_baselines3` in real runs of DQN, PPO and A2C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.logger import configure
from torch import Tensor
from torch.testing import assert_close

import nap
from nap.integrations.stable_baselines3 import (
    MonitorCallback,
    NaPActorCriticCnnPolicy,
    NaPActorCriticPolicy,
    NaPDQNCnnPolicy,
    NaPDQNMultiInputPolicy,
    NaPDQNPolicy,
    NaPMultiInputActorCriticPolicy,
)
from projection_nets import worst

SMALL = {"net_arch": [16, 16]}


def dqn(policy: Any = NaPDQNPolicy, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "learning_starts": 20,
        "train_freq": 1,
        "batch_size": 16,
        "buffer_size": 500,
        "seed": 0,
    }
    kwargs = SMALL | options.pop("policy_kwargs", {})
    settings |= {"device": "cpu", "seed": 0, "learning_rate": 0.01, "policy_kwargs": kwargs}
    return DQN(policy, "CartPole-v1", **settings | options)


def ppo(algorithm: Any = PPO, env: str = "CartPole-v1", **options: Any) -> Any:
    steps = {"n_steps": 64, "batch_size": 32, "n_epochs": 2} if algorithm is PPO else {"n_steps": 16}
    kwargs = SMALL | options.pop("policy_kwargs", {})
    settings = {"learning_rate": 0.01, "seed": 0, "device": "cpu", "policy_kwargs": kwargs}
    return algorithm(NaPActorCriticPolicy, env, **steps | settings | options)


def observations(count: int = 64) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)


def radii(model: Any) -> dict[str, Tensor]:
    return model.policy.projector.state_dict()["radii"]


def tensors(policy: Any) -> dict[str, Tensor]:
    return {name: part for name, part in policy.state_dict().items() if isinstance(part, Tensor)}


# --- training


def test_dqn_stays_on_the_radii_and_its_head_is_free() -> None:
    model = dqn()
    start = {name: p.norm().item() for name, p in model.q_net.named_parameters()}
    model.learn(60)
    projector = model.policy.projector
    assert set(projector.updates.values()) == {model._n_updates}
    assert model._n_updates > 30
    assert worst(projector) < 1e-6
    assert projector.plan.names("project") == ["q_net.0.weight", "q_net.2.weight"]
    norms = {name: model.q_net.get_parameter(name).norm().item() for name in start}
    assert norms["q_net.2.weight"] == pytest.approx(start["q_net.2.weight"], rel=1e-6)
    assert norms["q_net.4.weight"] != pytest.approx(start["q_net.4.weight"], rel=1e-3)
    for network in (model.q_net, model.q_net_target):
        assert not nap.plan(network, torch.randn(4, 4)).placements  # nothing is left to do
        assert hasattr(network.q_net[2], "nap_norm")


def test_the_target_of_dqn_gets_the_same_updates() -> None:
    model = dqn(tau=1.0, target_update_interval=1_000)
    assert_close(model.q_net_target.state_dict(), model.q_net.state_dict(), rtol=0, atol=0)
    before = {name: p.clone() for name, p in model.q_net_target.named_parameters()}
    model.learn(60)
    assert_close(
        dict(model.q_net_target.named_parameters()), before, rtol=0, atol=0
    )  # not touched in between
    scale = "q_net.0.nap_norm.weight"
    assert not torch.equal(model.q_net.get_parameter(scale), before[scale])
    model._n_calls = 999
    model._on_step()
    assert_close(model.q_net_target.state_dict(), model.q_net.state_dict(), rtol=0, atol=0)

    model = dqn(tau=0.25, target_update_interval=1, learning_starts=1_000)
    model.set_logger(configure(None, []))
    old = {name: p.clone() for name, p in model.q_net_target.named_parameters()}
    for parameter in model.q_net.parameters():
        parameter.data += 1.0
    model._on_step()
    for name, parameter in model.q_net_target.named_parameters():  # the norms' too
        assert_close(parameter, old[name] + 0.25)


@pytest.mark.parametrize(
    ("algorithm", "env"), [(PPO, "CartPole-v1"), (PPO, "Pendulum-v1"), (A2C, "CartPole-v1")]
)
def test_actor_critics_stay_on_the_radii(algorithm: Any, env: str) -> None:
    model = ppo(algorithm, env)
    start = {name: p.norm().item() for name, p in model.policy.named_parameters()}
    model.learn(128)
    projector = model.policy.projector
    assert worst(projector) < 1e-6
    assert min(projector.updates.values()) >= 8
    names = projector.plan.names("project")
    hidden = [f"mlp_extractor.{net}_net.{i}.weight" for net in ("policy", "value") for i in (0, 2)]
    assert sorted(names) == hidden
    norms = {name: p.norm().item() for name, p in model.policy.named_parameters()}
    assert [norms[name] for name in names] == pytest.approx([start[name] for name in names])
    assert model.policy.get_parameter("action_net.weight").norm() > 1.5 * start["action_net.weight"]


def test_options_of_both_steps_reach_them() -> None:
    options = {"normalize": {"norm": "rms", "affine": "none"}, "project": {"output": "project", "every": 3}}
    model = dqn(policy_kwargs=options)
    assert not any("nap_norm" in name for name, _ in model.q_net.named_parameters())
    assert "q_net.4.weight" in model.policy.projector.plan.names("project")
    grown = ppo(policy_kwargs={"project": {"output": None}})  # a policy head that starts near zero
    assert grown.policy.projector.plan.names("grow") == ["action_net.weight"]


IMAGE = spaces.Box(0, 255, (3, 36, 36), dtype=np.uint8)
BOTH = spaces.Dict({"vector": spaces.Box(-1, 1, (6,)), "image": IMAGE})


@pytest.mark.parametrize(
    ("policy", "space"),
    [
        (NaPDQNCnnPolicy, IMAGE),
        (NaPActorCriticCnnPolicy, IMAGE),
        (NaPDQNMultiInputPolicy, BOTH),
        (NaPMultiInputActorCriticPolicy, BOTH),
    ],
)
def test_policies_of_images_and_of_several_inputs(policy: Any, space: Any) -> None:
    kwargs = {"features_extractor_kwargs": {"features_dim": 16} if space is IMAGE else {"cnn_output_dim": 16}}
    made = policy(space, spaces.Discrete(3), lambda _: 1e-3, **kwargs)
    network = getattr(made, "q_net", made)
    assert len([p for n, p in network.named_parameters() if n.endswith("nap_norm.weight")]) >= 4
    made.predict(space.sample())
    assert made.optimizer in made.projector.attached


# --- save and load


@pytest.mark.parametrize("make", [dqn, ppo])
def test_a_loaded_model_has_its_norms_and_its_radii(make: Any, tmp_path: Path) -> None:
    model = make(policy_kwargs={"project": {"every": 10_000}})  # so that it is saved off the radius
    model.learn(100)
    assert worst(model.policy.projector) > 1e-3
    model.save(tmp_path / "model.zip")
    again = type(model).load(tmp_path / "model.zip", env=model.get_env(), device="cpu")
    assert type(again.policy) is type(model.policy)
    assert_close(tensors(again.policy), tensors(model.policy), rtol=0, atol=0)
    assert_close(radii(again), radii(model), rtol=0, atol=0)
    assert again.policy.projector.updates == model.policy.projector.updates
    assert again.policy.projector.attached == (again.policy.optimizer,)
    assert_close(again.policy.projector.norm_ratios(), model.policy.projector.norm_ratios())
    seen = observations(8)
    assert (again.predict(seen, deterministic=True)[0] == model.predict(seen, deterministic=True)[0]).all()
    again.policy.projector.project_()
    before = again.policy.projector.updates
    again.learn(100, reset_num_timesteps=False)
    assert min(again.policy.projector.updates.values()) > max(before.values())


def test_a_policy_saved_alone(tmp_path: Path) -> None:
    policy = ppo(policy_kwargs={"normalize": {"norm": "rms"}}).learn(64).policy
    policy.save(tmp_path / "policy.pt")
    again = NaPActorCriticPolicy.load(str(tmp_path / "policy.pt"), device="cpu")
    assert_close(tensors(again), tensors(policy), rtol=0, atol=0)
    assert_close(again.projector.norm_ratios(), policy.projector.norm_ratios())


def test_parameters_of_another_model_are_refused(tmp_path: Path) -> None:
    dqn(policy_kwargs={"net_arch": [16, 8]}).save(tmp_path / "other.zip")
    with pytest.raises(
        ValueError, match=r"another Projector:\n  shapes\.q_net\.2\.weight: \[8, 16\] in the state"
    ):
        dqn().set_parameters(str(tmp_path / "other.zip"), device="cpu")
    with pytest.raises(ValueError, match=r"settings\.every: 1 in the state, 2 here"):
        dqn(policy_kwargs={"project": {"every": 2}}).set_parameters(dqn().get_parameters())


def test_a_second_projector_is_refused() -> None:
    model = dqn()
    with pytest.raises(ValueError, match="this Adam has a Projector already"):
        nap.Projector(model.q_net).attach(model.policy.optimizer)


# --- monitor


@pytest.mark.parametrize("make", [dqn, ppo])
def test_the_monitor_records_for_the_logger(make: Any, tmp_path: Path) -> None:
    model = make()
    model.set_logger(configure(str(tmp_path), ["csv", "stdout"]))
    model.learn(128, callback=MonitorCallback(observations(), every=4), log_interval=1)
    model.logger.close()
    rows = [line.split(",") for line in (tmp_path / "progress.csv").read_text().splitlines()]
    header, last = rows[0], rows[-1]
    rates = [name for name in header if name.startswith("nap/rate/")]
    assert len(rates) == (3 if make is dqn else 6)
    for kind in ("dormant/", "rank/", "norm/parameters"):
        assert any(name.startswith(f"nap/{kind}") for name in header), kind
    assert float(last[header.index("nap/norm/parameters")]) > 0
    assert not model.policy.optimizer._optimizer_step_post_hooks.keys() - {
        handle.id for hook in model.policy.projector._hooks for handle in hook._handles
    }  # it lets go at the end


def test_the_monitor_draws_no_random_numbers() -> None:
    def trained(*callbacks: Any) -> Any:
        model = ppo()
        return tensors(model.learn(128, callback=list(callbacks)).policy)

    assert_close(trained(MonitorCallback(observations(), every=2)), trained(), rtol=0, atol=0)


def test_gymnasium_spaces_keep_their_generators() -> None:
    env = gymnasium.make("CartPole-v1")
    env.observation_space.seed(3)
    first = env.observation_space.sample()
    env.observation_space.seed(3)
    NaPDQNPolicy(env.observation_space, env.action_space, lambda _: 1e-3)
    assert (env.observation_space.sample() == first).all()
