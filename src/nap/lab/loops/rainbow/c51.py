"""Categorical double Q-learning: distributions of returns over fixed atoms."""

from __future__ import annotations

import torch
from torch import Tensor


def support(atoms: int, v_max: float, like: Tensor) -> Tensor:
    """The returns that the atoms stand for, from −v_max to v_max."""
    return torch.linspace(-v_max, v_max, atoms, dtype=like.dtype, device=like.device)


def mean_return(logits: Tensor, atoms: Tensor) -> Tensor:
    """The mean return of each distribution: (…, atoms) → (…).

    >>> mean_return(torch.zeros(2, 3), torch.tensor([-1.0, 0.0, 4.0]))
    tensor([1., 1.])
    """
    return logits.softmax(-1) @ atoms


def project_distribution(probabilities: Tensor, rewards: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """The distribution of r + γ·z, z by `probabilities` (B, atoms), brought back onto the atoms.

    Each atom's mass goes to the two atoms beside where it lands, by nearness; beyond the ends, to the end.

    >>> certain, zero = torch.tensor([[0.0, 1.0]]), torch.zeros(1)
    >>> project_distribution(certain, zero + 0.5, discounts=zero, atoms=torch.tensor([0.0, 1.0]))
    tensor([[0.5000, 0.5000]])
    """
    landing = (rewards[:, None] + discounts[:, None] * atoms).clamp(atoms[0], atoms[-1])  # (B, from)
    distance = (landing[:, None, :] - atoms[:, None]).abs() / (atoms[1] - atoms[0])  # (B, to, from)
    return ((1 - distance).clamp(min=0) @ probabilities[:, :, None]).squeeze(-1)


def log_probabilities(logits: Tensor, actions: Tensor) -> Tensor:
    """Log-probabilities (B, atoms) of the returns of the actions taken, from (B, actions, atoms)."""
    rows = torch.arange(len(actions), device=actions.device)
    return logits[rows, actions].log_softmax(-1)


def double_q_targets(
    rewards: Tensor, discounts: Tensor, actions: Tensor, logits: Tensor, atoms: Tensor
) -> Tensor:
    """Target distributions: `actions` are chosen by the online network, `logits` are the target network's."""
    rows = torch.arange(len(actions), device=actions.device)
    return project_distribution(logits[rows, actions].softmax(-1), rewards, discounts, atoms)
