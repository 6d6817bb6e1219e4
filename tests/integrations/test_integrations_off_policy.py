"""`nap.integrations.stable_baselines3` in real runs of SAC, TD3 and DDPG: actors, critics, targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DDPG, SAC, TD3
from stable_baselines3.common.logger import configure
from torch import Tensor
from torch.testing import assert_close

import nap
from nap.integrations.stable_baselines3 import (
    MonitorCallback,
    NaPSACCnnPolicy,
    NaPSACMultiInputPolicy,
    NaPSACPolicy,
    NaPTD3CnnPolicy,
    NaPTD3MultiInputPolicy,
    NaPTD3Policy,
)
from projection_nets import worst

ALGORITHMS = [(SAC, NaPSACPolicy), (TD3, NaPTD3Policy), (DDPG, NaPTD3Policy)]
STARTS = 20


def agent(algorithm: Any, policy: Any, **options: Any) -> Any:
    kwargs = {"net_arch": [16, 16]} | options.pop("policy_kwargs", {})
    settings: dict[str, Any] = {"learning_starts": STARTS, "buffer_size": 500, "batch_size": 16}
    settings |= {"learning_rate": 0.01, "seed": 0, "device": "cpu", "policy_kwargs": kwargs}
    return algorithm(policy, "Pendulum-v1", **settings | options)


def tensors(policy: Any) -> dict[str, Tensor]:
    return {name: part for name, part in policy.state_dict().items() if isinstance(part, Tensor)}


def probe() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)


@pytest.mark.parametrize(("algorithm", "policy"), ALGORITHMS)
def test_actor_and_critics_stay_on_their_radii(algorithm: Any, policy: Any) -> None:
    model = agent(algorithm, policy)
    start = {name: weight.norm().item() for name, weight in tensors(model.policy).items()}
    model.learn(60)
    projector, names = model.policy.projector, model.policy.projector.plan.names("project")
    assert worst(projector) <= 1e-6
    assert projector.attached == (model.actor.optimizer, model.critic.optimizer)
    delay = getattr(model, "policy_delay", 1)
    for name in names:
        assert tensors(model.policy)[name].norm().item() == pytest.approx(start[name], rel=1e-6)
        assert projector.updates[name] == model._n_updates // (delay if name.startswith("actor") else 1)
    critics = 1 if algorithm is DDPG else 2
    assert len(names) == 2 + 2 * critics
    heads = [row.name for row in projector.plan.rows if row.reason == "output='free'"]
    assert len(heads) == (2 if algorithm is SAC else 1) + critics
    observations, actions = torch.randn(4, 3), torch.rand(4, 1)
    for network, inputs in ((model.actor, (observations,)), (model.critic, (observations, actions))):
        assert not nap.plan(network, inputs).placements  # nothing is left to do


@pytest.mark.parametrize(("algorithm", "policy"), ALGORITHMS)
def test_targets_have_the_norms_and_follow_slowly(algorithm: Any, policy: Any) -> None:
    model = agent(algorithm, policy, tau=0.25, gradient_steps=1)
    pairs = {"critic": (model.critic, model.critic_target)}
    pairs |= {} if algorithm is SAC else {"actor": (model.actor, model.actor_target)}
    for own, target in pairs.values():
        assert_close(target.state_dict(), own.state_dict(), rtol=0, atol=0)
    for steps in (STARTS + 5, 1):  # the last step is one update, the sixth
        before = {n: p.clone() for of, (_, t) in pairs.items() for n, p in t.named_parameters(of)}
        model.learn(steps, reset_num_timesteps=False)
    for of, (own, target) in pairs.items():
        held = dict(own.named_parameters(of))
        assert model._n_updates % getattr(model, "policy_delay", 1) == 0
        for name, parameter in target.named_parameters(of):  # the norms' parameters too
            assert_close(parameter, 0.75 * before[name] + 0.25 * held[name])
        assert not any(p.requires_grad and p.grad is not None for p in target.parameters())


IMAGE = spaces.Box(0, 255, (3, 36, 36), dtype=np.uint8)
BOTH = spaces.Dict({"vector": spaces.Box(-1, 1, (6,)), "image": IMAGE})


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("policy", "space"),
    [
        (NaPSACCnnPolicy, IMAGE),
        (NaPTD3CnnPolicy, IMAGE),
        (NaPSACMultiInputPolicy, BOTH),
        (NaPTD3MultiInputPolicy, BOTH),
    ],
)
def test_policies_of_images_and_of_several_inputs(policy: Any, space: Any, shared: bool) -> None:
    kwargs: dict[str, Any] = {"net_arch": [16], "share_features_extractor": shared}
    size = {"features_dim": 16} if space is IMAGE else {"cnn_output_dim": 16}
    box = spaces.Box(-1, 1, (3,))
    made = policy(space, box, lambda _: 1e-3, features_extractor_kwargs=size, **kwargs)
    made.predict(space.sample())
    names = made.projector.plan.names("project")
    assert any(name.startswith("actor.features_extractor") for name in names)
    assert any(name.startswith("critic.features_extractor") for name in names) != shared  # once, not twice
    assert_close(made.critic_target.state_dict(), made.critic.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("policy", [NaPSACPolicy, NaPTD3Policy])
def test_actions_with_several_axes(policy: Any) -> None:
    made = policy(spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (2, 3)), lambda _: 1e-3, net_arch=[16])
    assert made.predict(np.zeros(4, np.float32))[0].shape == (2, 3)


@pytest.mark.parametrize(("algorithm", "policy"), ALGORITHMS)
def test_a_loaded_model_has_its_norms_and_its_radii(algorithm: Any, policy: Any, tmp_path: Path) -> None:
    model = agent(algorithm, policy, policy_kwargs={"project": {"every": 10_000}})  # saved off the radius
    model.learn(40)
    assert worst(model.policy.projector) > 1e-3
    model.save(tmp_path / "model.zip")
    again = algorithm.load(tmp_path / "model.zip", env=model.get_env(), device="cpu")
    assert_close(tensors(again.policy), tensors(model.policy), rtol=0, atol=0)
    one, other = (m.policy.projector.state_dict() for m in (again, model))
    assert_close(one["radii"], other["radii"], rtol=0, atol=0)
    assert one["updates"] == other["updates"]
    again.learn(STARTS + 10, reset_num_timesteps=False)
    assert min(again.policy.projector.updates.values()) > min(other["updates"].values())


@pytest.mark.parametrize("policy", ["MlpPolicy", NaPSACPolicy])
def test_the_monitor_watches_actor_and_critics(policy: Any, tmp_path: Path) -> None:
    model = agent(SAC, policy)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(220, callback=MonitorCallback(probe(), every=50), log_interval=1)
    model.logger.close()
    header, *rows = [line.split(",") for line in (tmp_path / "progress.csv").read_text().splitlines()]
    last = dict(zip(header, rows[-1], strict=True))
    for name in ("actor/rate/latent_pi.0.weight", "critic/rate/qf1.0.weight", "critic/rank/qf0.3"):
        assert float(last[f"nap/{name}"]) > 0
    assert float(last["nap/actor/norm/gradients"]) != float(last["nap/critic/norm/gradients"])
    hooks = [len(net.optimizer._optimizer_step_post_hooks) for net in (model.actor, model.critic)]
    assert hooks == ([0, 0] if policy == "MlpPolicy" else [1, 1])  # it lets go at the end


def test_the_noise_of_state_dependent_exploration_is_left_free() -> None:
    """What the policy returns depends on its mean alone, so nothing tells how the noise's scale is seen."""
    model = agent(SAC, NaPSACPolicy, use_sde=True)
    actions = {row.name: row.action for row in model.policy.projector.plan.rows}
    assert actions["actor.log_std"] == "free"
    model.learn(60)
    assert worst(model.policy.projector) <= 1e-6
