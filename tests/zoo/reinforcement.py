"""Networks of deep reinforcement learning."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Family

FAMILY = Family("reinforcement")
ACTIONS = 6


def frames() -> Tensor:
    return torch.randint(0, 256, (2, 4, 36, 36)).float()


class NoisyLinear(nn.Module):
    """Factorised Gaussian noise; mean and deviation are separate tensors."""

    def __init__(self, inside: int, outside: int):
        super().__init__()
        self.w_mu, self.b_mu = (
            nn.Parameter((2 * torch.rand(s) - 1) / inside**0.5) for s in ((outside, inside), outside)
        )
        self.w_sigma = nn.Parameter(torch.full((outside, inside), 0.1 / inside**0.5))
        self.b_sigma = nn.Parameter(torch.full((outside,), 0.1 / inside**0.5))

    def forward(self, x: Tensor) -> Tensor:
        outside, inside = self.w_mu.shape
        into, out = (e.sign() * e.abs().sqrt() for e in (torch.randn(inside), torch.randn(outside)))
        weight = self.w_mu + self.w_sigma * torch.outer(out, into).to(self.w_mu)
        return F.linear(x, weight, self.b_mu + self.b_sigma * out.to(self.b_mu))


def torso() -> nn.Sequential:
    """Nature DQN's three convolutions, for frames of 36×36."""
    layers = [
        nn.Conv2d(4, 8, 8, 4),
        nn.ReLU(),
        nn.Conv2d(8, 16, 4, 2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 2, 1),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.Flatten())


class NatureDQN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.torso, self.hidden, self.head = torso(), nn.Linear(64, 32), nn.Linear(32, ACTIONS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(self.torso(x / 255.0))))


class Rainbow(nn.Module):
    """DQN Zoo's form: dueling streams of noisy layers over a categorical value distribution."""

    def __init__(self, atoms: int = 11, linear: type[nn.Module] = NoisyLinear):
        super().__init__()
        self.torso, self.atoms = torso(), atoms
        self.value, self.advantage = linear(64, 32), linear(64, 32)
        self.value_head, self.advantage_head = linear(32, atoms), linear(32, ACTIONS * atoms)
        self.register_buffer("support", torch.linspace(-10, 10, atoms))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.torso(x / 255.0)
        value = self.value_head(F.relu(self.value(x)))[:, None]
        advantage = self.advantage_head(F.relu(self.advantage(x))).view(-1, ACTIONS, self.atoms)
        logits = value + advantage - advantage.mean(1, keepdim=True)
        return (logits.softmax(-1) * self.support).sum(-1), logits


class ImpalaResidual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class Impala(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for inside, outside in ((4, 8), (8, 16)):
            stages += [nn.Conv2d(inside, outside, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            stages += [ImpalaResidual(outside), ImpalaResidual(outside)]
        self.stages, self.hidden = nn.Sequential(*stages), nn.Linear(16 * 81, 32)
        self.policy, self.value = nn.Linear(32, ACTIONS), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.hidden(F.relu(self.stages(x / 255.0)).flatten(1)))
        return self.policy(x), self.value(x)


class SquashedActor(nn.Module):
    """SAC: mean and log-deviation heads, tanh of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.mean, self.log_std = nn.Linear(32, 3), nn.Linear(32, 3)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(state)
        mean, std = self.mean(x), self.log_std(x).clamp(-5, 2).exp()
        raw = mean + std * torch.randn(3).to(std)
        action = torch.tanh(raw)
        return action, (-0.5 * ((raw - mean) / std) ** 2 - std.log()).sum(-1)


class TwinCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(11, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
            for _ in range(2)
        )

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        x = torch.cat([state, action], dim=-1)
        return torch.minimum(*(net(x) for net in self.nets))


class ActorCritic(nn.Module):
    """The critic judges what the actor did, in one forward: the actor's tanh is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3), nn.Tanh())
        self.critic = TwinCritic()

    def forward(self, state: Tensor) -> Tensor:
        return self.critic(state, self.actor(state))


FAMILY.add("Nature DQN", lambda: (NatureDQN(), frames()))
FAMILY.add("Rainbow", lambda: (Rainbow(), frames()))
FAMILY.add("dueling, categorical, without noise", lambda: (Rainbow(linear=nn.Linear), frames()))
FAMILY.add("IMPALA", lambda: (Impala(), frames()))
FAMILY.add("SAC actor", lambda: (SquashedActor(), torch.randn(2, 8)))
FAMILY.add("SAC critic", lambda: (TwinCritic(), (torch.randn(2, 8), torch.randn(2, 3))))
FAMILY.add("critic of the actor", lambda: (ActorCritic(), torch.randn(2, 8)))
