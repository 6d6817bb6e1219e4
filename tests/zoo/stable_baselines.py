"""The networks of Stable-Baselines3's policies, over each kind of space."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from .entry import Family

FAMILY = Family("stable-baselines3")


def _constant_rate(_: float) -> float:
    return 1e-3


def _spaces() -> dict[str, Any]:
    from gymnasium import spaces

    vector = spaces.Box(-1, 1, (6,))
    image = spaces.Box(0, 255, (3, 36, 36), dtype=numpy.uint8)
    return {
        "vector": vector,
        "image": image,
        "both": spaces.Dict({"vector": vector, "image": image}),
        "discrete": spaces.Discrete(4),
        "multi-discrete": spaces.MultiDiscrete([3, 2]),
        "box": spaces.Box(-1, 1, (3,)),
    }


def _observation(kind: str) -> Any:
    vector, image = torch.rand(2, 6) * 2 - 1, torch.randint(0, 256, (2, 3, 36, 36), dtype=torch.uint8)
    return {"vector": vector, "image": image, "both": {"vector": vector, "image": image}}[kind]


def _policy(algorithm: str, policy: str, observation: str, action: str, **settings: Any) -> nn.Module:
    import stable_baselines3

    cls = getattr(stable_baselines3, algorithm).policy_aliases[policy]
    spaces = _spaces()
    if "Cnn" in policy:
        settings["features_extractor_kwargs"] = {"features_dim": 32}
    return cls(spaces[observation], spaces[action], _constant_rate, **settings)


def _part(part: str, *built: Any, **settings: Any) -> nn.Module:
    return getattr(_policy(*built, **settings), part)


def _action() -> Tensor:
    return torch.rand(2, 3) * 2 - 1


def _add(name: str, model: Callable[[], nn.Module], observation: str, *more: Callable[[], Any]) -> None:
    FAMILY.add(name, lambda: (model(), (_observation(observation), *(make() for make in more))))


def _deterministic() -> bool:
    return True


small = {"net_arch": [32, 32]}
_add("DQN MLP", lambda: _part("q_net", "DQN", "MlpPolicy", "vector", "discrete", **small), "vector")
_add("DQN CNN", lambda: _part("q_net", "DQN", "CnnPolicy", "image", "discrete", **small), "image")
for algorithm, observation, action in (
    ("PPO", "vector", "box"),
    ("PPO", "vector", "discrete"),
    ("PPO", "image", "discrete"),
    ("PPO", "both", "box"),
    ("A2C", "vector", "multi-discrete"),
    ("A2C", "image", "box"),
):
    kind = {"vector": "MlpPolicy", "image": "CnnPolicy", "both": "MultiInputPolicy"}[observation]
    build = partial(_policy, algorithm, kind, observation, action)
    _add(f"{algorithm} {observation} to {action}", build, observation, _deterministic)
_add(
    "SAC actor",
    lambda: _part("actor", "SAC", "MlpPolicy", "vector", "box", **small),
    "vector",
    _deterministic,
)
_add("SAC critic", lambda: _part("critic", "SAC", "MlpPolicy", "vector", "box", **small), "vector", _action)
_add("TD3 actor", lambda: _part("actor", "TD3", "MlpPolicy", "vector", "box", **small), "vector")
_add("TD3 critic", lambda: _part("critic", "TD3", "MlpPolicy", "vector", "box", **small), "vector", _action)

ENTRIES = list(FAMILY)
