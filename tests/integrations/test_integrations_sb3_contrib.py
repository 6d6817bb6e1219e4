"""`nap.integrations.sb3_contrib` in real runs of TQC, CrossQ and QRDQN; and a SimBa encoder in SAC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

pytest.importorskip("sb3_contrib", reason="pip install 'normalize-and-project[integrations]'")

from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3.common.logger import configure

from nap.integrations.sb3_contrib import NaPCrossQPolicy, NaPQRDQNPolicy, NaPTQCPolicy
from nap.integrations.stable_baselines3 import MonitorCallback
from projection_nets import worst

AGENTS = [
    (TQC, NaPTQCPolicy, "Pendulum-v1"),
    (CrossQ, NaPCrossQPolicy, "Pendulum-v1"),
    (QRDQN, NaPQRDQNPolicy, "CartPole-v1"),
]


def agent(algorithm: Any, policy: Any, env: str, **options: Any) -> Any:
    settings: dict[str, Any] = {"learning_starts": 20, "buffer_size": 500, "batch_size": 16}
    settings |= {"learning_rate": 0.01, "seed": 0, "device": "cpu"}
    return algorithm(policy, env, policy_kwargs={"net_arch": [16, 16]}, **settings | options)


def tensors(policy: Any) -> dict[str, Tensor]:
    return {name: part for name, part in policy.state_dict().items() if isinstance(part, Tensor)}


@pytest.mark.parametrize(("algorithm", "policy", "env"), AGENTS)
def test_weights_stay_on_their_radii(algorithm: Any, policy: Any, env: str) -> None:
    model = agent(algorithm, policy, env)
    before = {name: part.clone() for name, part in tensors(model.policy).items()}
    model.learn(60)
    projector = model.policy.projector
    names = projector.plan.names("project")
    assert worst(projector) <= 1e-6
    assert len(names) == (2 if algorithm is QRDQN else 6)
    prefix = "quantile_net." if algorithm is QRDQN else ""
    for name in names:
        weight, start = tensors(model.policy)[prefix + name], before[prefix + name]
        assert not torch.equal(weight, start), "it learnt"
        assert weight.norm().item() == pytest.approx(start.norm().item(), rel=1e-6)


@pytest.mark.parametrize(("algorithm", "policy", "env"), AGENTS)
def test_saved_agents_act_the_same(algorithm: Any, policy: Any, env: str, tmp_path: Path) -> None:
    model = agent(algorithm, policy, env)
    model.learn(40)
    model.save(tmp_path / "agent")
    again = algorithm.load(tmp_path / "agent", device="cpu")
    size = model.observation_space.shape[0]
    probe = np.random.default_rng(0).normal(size=(8, size)).astype(np.float32)
    found, expected = (m.predict(probe, deterministic=True)[0] for m in (again, model))
    assert_close(torch.as_tensor(found), torch.as_tensor(expected))
    there, here = (m.policy.projector.state_dict()["radii"] for m in (again, model))
    assert there.keys() == here.keys()
    assert all(torch.equal(there[name], here[name]) for name in here)


@pytest.mark.parametrize(("algorithm", "policy", "env"), AGENTS)
def test_the_monitor_watches_them(algorithm: Any, policy: Any, env: str, tmp_path: Path) -> None:
    model = agent(algorithm, policy, env)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    probe = np.zeros((4, *model.observation_space.shape), np.float32)
    model.learn(60, callback=MonitorCallback(probe, every=10), log_interval=1)
    model.logger.dump(60)
    model.logger.close()
    assert "nap/" in (tmp_path / "progress.csv").read_text().splitlines()[0]


def test_batch_renormalization_stays_in_crossq() -> None:
    model = agent(CrossQ, NaPCrossQPolicy, "Pendulum-v1")
    kinds = [type(module).__name__ for module in model.policy.actor.latent_pi]
    assert kinds.count("BatchRenorm1d") == 3
    assert int(model.policy.actor.latent_pi[0].steps) == 0  # conversion fed no statistics
    linear = [module for module in model.policy.actor.latent_pi if isinstance(module, nn.Linear)]
    assert all(hasattr(module, "nap_norm") for module in linear)
