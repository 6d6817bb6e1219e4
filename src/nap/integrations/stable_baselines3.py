"""Stable-Baselines3: `PPO(NaPActorCriticPolicy, env)`, `DQN(NaPDQNPolicy, env)`.

The policy has its norms when it is built, so whatever builds it (a new model, `load`, a target network) has
them, and the radii are in its `state_dict`, so `save` and `load` keep them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gymnasium.vector.utils import batch_space
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import (
    ActorCriticCnnPolicy,
    ActorCriticPolicy,
    MultiInputActorCriticPolicy,
)
from stable_baselines3.dqn.policies import CnnPolicy, DQNPolicy, MultiInputPolicy
from torch import nn

from nap.conversion.normalize import normalize_
from nap.integrations.monitor import Monitor
from nap.projection.project import Projector

Base: Any = nn.Module if TYPE_CHECKING else object


class WithNaP(Base):
    """What the policies below share: options, example inputs, an optimizer that knows the norms, the radii.

    For a policy of your own: `class Mine(NaPActorCritic, MyPolicy): pass`, or `NaPQNetwork` for DQN.

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
        """A new optimizer, since the first does not know the norms, with a projector after each step."""
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
    """Makes a policy of PPO or A2C one with NaP."""

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        normalize_(self, (self.example_inputs(), True), **self.normalize)  # True: draw no action
        self.follow(self, lr_schedule)


class NaPQNetwork(WithNaP):
    """Makes a policy of DQN one with NaP. The target network gets the same norms, and no projection:

    it is an average of projected networks, or a copy.
    """

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        plan = normalize_(self.q_net, (self.example_inputs(),), **self.normalize)
        normalize_(self.q_net_target, plan)
        self.q_net_target.load_state_dict(self.q_net.state_dict())
        self.follow(self.q_net, lr_schedule)


class NaPActorCriticPolicy(NaPActorCritic, ActorCriticPolicy):
    """`MlpPolicy` of PPO and A2C with NaP."""


class NaPActorCriticCnnPolicy(NaPActorCritic, ActorCriticCnnPolicy):
    """`CnnPolicy` of PPO and A2C with NaP."""


class NaPMultiInputActorCriticPolicy(NaPActorCritic, MultiInputActorCriticPolicy):
    """`MultiInputPolicy` of PPO and A2C with NaP."""


class NaPDQNPolicy(NaPQNetwork, DQNPolicy):
    """`MlpPolicy` of DQN with NaP."""


class NaPDQNCnnPolicy(NaPQNetwork, CnnPolicy):
    """`CnnPolicy` of DQN with NaP."""


class NaPDQNMultiInputPolicy(NaPQNetwork, MultiInputPolicy):
    """`MultiInputPolicy` of DQN with NaP."""


class MonitorCallback(BaseCallback):
    """Records what `nap.integrations.monitor.Monitor` measures, under "nap/", for TensorBoard, CSV and JSON.

    The terminal is left out: its table has no room for these names. The algorithm writes records out at
    its own `log_interval`; of several measurements in between it keeps the last.

    Args:
        probe: an array (or a dict of arrays) of observations, always the same.
        options: those of `Monitor`, such as `every=100`.
    """

    def __init__(self, probe: Any, **options: Any):
        super().__init__()
        self._probe, self._options = probe, options
        self._monitor: Monitor | None = None

    def _on_training_start(self) -> None:
        def record(numbers: dict[str, float]) -> None:
            for name, number in numbers.items():
                self.logger.record(name, number, exclude=("stdout", "log"))

        policy: Any = self.model.policy
        if not hasattr(policy, "optimizer") or policy.optimizer is None:
            raise ValueError(
                f"{type(self.model).__name__} has an optimizer for each network; monitor one of them: "
                "nap.integrations.monitor.Monitor(model.critic, probe, log).attach(model.critic.optimizer)"
            )
        observations = policy.obs_to_tensor(self._probe)[0]
        network = getattr(policy, "q_net", policy)
        inputs = (observations,) if network is not policy else (observations, True)  # True: draw no action
        self._monitor = Monitor(network, inputs, record, **self._options).attach(policy.optimizer)

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        if self._monitor is not None:
            self._monitor.detach()
