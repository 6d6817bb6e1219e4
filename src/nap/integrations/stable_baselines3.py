"""Stable-Baselines3: `PPO(NaPActorCriticPolicy, env)`, `DQN(NaPDQNPolicy, env)`, `SAC(NaPSACPolicy, env)`.

The policy has its norms when it is built, so whatever builds it (a new model, `load`, a target network) has
them, and the radii are in its `state_dict`, so `save` and `load` keep them.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from gymnasium.vector.utils import batch_space
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.dqn import policies as dqn
from stable_baselines3.sac import policies as sac
from stable_baselines3.td3 import policies as td3
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from nap.conversion.normalize import normalize_
from nap.integrations.monitor import Log, Monitor
from nap.projection.project import Projector

Base: Any = nn.Module if TYPE_CHECKING else object


class WithNaP(Base):
    """The common part of the policies below: options, example inputs, optimizer and projector.

    For a policy of your own: `class Mine(NaPActorCritic, MyPolicy): pass`, `NaPQNetwork` for DQN and
    `NaPOffPolicy` for SAC, TD3 and DDPG.

    Args:
        normalize: options of `nap.normalize_`.
        project: options of `nap.Projector`. Heads are free by default, for policy heads start near zero
            and values have an unknown scale: `{"output": "project"}` projects them.
    """

    projector: Projector

    def __init__(
        self,
        *args: Any,
        normalize: Mapping[str, Any] | None = None,
        project: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ):
        self.normalize, self.project = dict(normalize or {}), {"output": "free", **(project or {})}
        super().__init__(*args, **kwargs)

    def example_inputs(self) -> Any:
        """A batch of two observations of the right shapes."""
        space = copy.deepcopy(self.observation_space)  # so that the generator of the original does not move
        space.seed(0)
        batch = batch_space(space, 2).sample()
        return self.obs_to_tensor(batch)[0]

    def follow(self, network: nn.Module, lr_schedule: Any) -> None:
        """Build a new optimizer, which holds the norms' parameters, and attach a projector."""
        self.optimizer = self.optimizer_class(
            network.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs
        )
        self.projector = Projector(network, **self.project).attach(self.optimizer)

    def get_extra_state(self) -> dict[str, Any]:
        return self.projector.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.projector.load_state_dict(state)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "normalize": self.normalize, "project": self.project}


class NaPActorCritic(WithNaP):
    """Converts a policy of PPO or A2C."""

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        normalize_(self, (self.example_inputs(), True), **self.normalize)  # True: draw no action
        self.follow(self, lr_schedule)


class NaPQNetwork(WithNaP):
    """Converts a policy of DQN.

    The target network gets the same norms, and no projection: it is an average of projected networks, or a
    copy.
    """

    network = "q_net"  # the attribute; its target's has "_target" behind

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        network, target = getattr(self, self.network), getattr(self, f"{self.network}_target")
        plan = normalize_(network, (self.example_inputs(),), **self.normalize)
        normalize_(target, plan)
        target.load_state_dict(network.state_dict())
        self.follow(network, lr_schedule)


class NaPOffPolicy(WithNaP):
    """Converts a policy of SAC, TD3 or DDPG, with one projector for the actor and all critics.

    Each network gets its norms as it is made, before its optimizer is. So do the targets; they are averages
    of projected networks, and not projected.
    """

    def make_actor(self, *args: Any, **kwargs: Any) -> Any:
        actor = super().make_actor(*args, **kwargs)
        normalize_(actor, actor_inputs(actor, self.example_inputs()), **self.normalize)
        return actor

    def make_critic(self, *args: Any, **kwargs: Any) -> Any:
        critic = super().make_critic(*args, **kwargs)
        inputs = (self.example_inputs(), spread_actions(self, 2))
        normalize_(critic, inputs, **self.normalize)
        return critic

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        projector = Projector(nn.ModuleDict({"actor": self.actor, "critic": self.critic}), **self.project)
        self.projector = projector.attach(self.actor.optimizer, self.critic.optimizer)


def actor_inputs(actor: nn.Module, observations: Any) -> tuple[Any, ...]:
    """The arguments of a call that draws no action."""
    draws = "deterministic" in inspect.signature(actor.forward).parameters
    return (observations, True) if draws else (observations,)


def spread_actions(policy: Any, count: int) -> Tensor:
    """A fixed batch of actions between −1 and 1, as a critic sees them."""
    size = get_action_dim(policy.action_space)
    return torch.linspace(-1, 1, count * size, device=policy.device).reshape(size, count).T


class NaPActorCriticPolicy(NaPActorCritic, ActorCriticPolicy):
    """`MlpPolicy` of PPO and A2C with NaP."""


class NaPActorCriticCnnPolicy(NaPActorCritic, ActorCriticCnnPolicy):
    """`CnnPolicy` of PPO and A2C with NaP."""


class NaPMultiInputActorCriticPolicy(NaPActorCritic, MultiInputActorCriticPolicy):
    """`MultiInputPolicy` of PPO and A2C with NaP."""


class NaPDQNPolicy(NaPQNetwork, dqn.DQNPolicy):
    """`MlpPolicy` of DQN with NaP."""


class NaPDQNCnnPolicy(NaPQNetwork, dqn.CnnPolicy):
    """`CnnPolicy` of DQN with NaP."""


class NaPDQNMultiInputPolicy(NaPQNetwork, dqn.MultiInputPolicy):
    """`MultiInputPolicy` of DQN with NaP."""


class NaPSACPolicy(NaPOffPolicy, sac.SACPolicy):
    """`MlpPolicy` of SAC with NaP."""


class NaPSACCnnPolicy(NaPOffPolicy, sac.CnnPolicy):
    """`CnnPolicy` of SAC with NaP."""


class NaPSACMultiInputPolicy(NaPOffPolicy, sac.MultiInputPolicy):
    """`MultiInputPolicy` of SAC with NaP."""


class NaPTD3Policy(NaPOffPolicy, td3.TD3Policy):
    """`MlpPolicy` of TD3 and DDPG with NaP."""


class NaPTD3CnnPolicy(NaPOffPolicy, td3.CnnPolicy):
    """`CnnPolicy` of TD3 and DDPG with NaP."""


class NaPTD3MultiInputPolicy(NaPOffPolicy, td3.MultiInputPolicy):
    """`MultiInputPolicy` of TD3 and DDPG with NaP."""


class MonitorCallback(BaseCallback):
    """Records what `nap.integrations.monitor.Monitor` measures, under "nap/", for TensorBoard, CSV and JSON.

    Of SAC, TD3 and DDPG it watches the actor, under "nap/actor/", and the critics, under "nap/critic/". The
    terminal is left out: its table has no room for these names. The algorithm writes records out at its
    own `log_interval`; of several measurements in between it keeps the last.

    Args:
        probe: an array (or a dict of arrays) of observations, always the same.
        options: those of `Monitor`, such as `every=100`.
    """

    def __init__(self, probe: Any, **options: Any):
        super().__init__()
        self._probe, self._options = probe, options
        self._monitors: list[Monitor] = []

    def _on_training_start(self) -> None:
        policy: Any = self.model.policy
        observations = policy.obs_to_tensor(self._probe)[0]
        for name, network, inputs, optimizer in watched(policy, observations):
            monitor = Monitor(network, inputs, self._recorded_under(name), **self._options)
            self._monitors.append(monitor.attach(optimizer))

    def _recorded_under(self, name: str) -> Log:
        def record(numbers: dict[str, float]) -> None:
            for key, number in numbers.items():
                key = key.replace("nap/", f"nap/{name}", 1)
                self.logger.record(key, number, exclude=("stdout", "log"))

        return record

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        for monitor in self._monitors:
            monitor.detach()
        self._monitors.clear()


def watched(policy: Any, observations: Any) -> Iterator[tuple[str, nn.Module, Any, Any]]:
    """What can be measured of a policy: a name, a network, the arguments of a call of it, its optimizer."""
    if hasattr(policy, "critic"):
        yield "actor/", policy.actor, actor_inputs(policy.actor, observations), policy.actor.optimizer
        actions = spread_actions(policy, len(tree_leaves(observations)[0]))
        yield "critic/", policy.critic, (observations, actions), policy.critic.optimizer
    elif network := getattr(policy, getattr(policy, "network", "q_net"), None):
        yield "", network, (observations,), policy.optimizer
    else:
        yield "", policy, (observations, True), policy.optimizer  # True: draw no action
