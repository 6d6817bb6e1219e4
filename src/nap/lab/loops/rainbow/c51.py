"""Categorical double Q-learning: distributions of returns over fixed atoms."""

from __future__ import annotations

import torch
from torch import Tensor


def support(atoms: int, v_max: float, like: Tensor) -> Tensor:
    """The returns that the atoms stand for, from −v_max to v_max."""
    return torch.linspace(-v_max, v_max, atoms, dtype=like.dtype, device=like.device)


def expected(logits: Tensor, atoms: Tensor) -> Tensor:
    """The mean return of each distribution: (…, atoms) → (…).

    >>> expected(torch.zeros(2, 3), torch.tensor([-1.0, 0.0, 4.0]))
    tensor([1., 1.])
    """
    return logits.softmax(-1) @ atoms


def projected(probabilities: Tensor, rewards: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """The distribution of r + γ·z, z by `probabilities` (B, atoms), brought back onto the atoms.

    Each atom's mass goes to the two atoms beside where it lands, by nearness; beyond the ends, to the end.

    >>> certain, zero = torch.tensor([[0.0, 1.0]]), torch.zeros(1)
    >>> projected(certain, zero + 0.5, discounts=zero, atoms=torch.tensor([0.0, 1.0]))
    tensor([[0.5000, 0.5000]])
    """
    landing = (rewards[:, None] + discounts[:, None] * atoms).clamp(atoms[0], atoms[-1])  # (B, from)
    distance = (landing[:, None, :] - atoms[:, None]).abs() / (atoms[1] - atoms[0])  # (B, to, from)
    return ((1 - distance).clamp(min=0) @ probabilities[:, :, None]).squeeze(-1)


def taken(logits: Tensor, actions: Tensor) -> Tensor:
    """Log-probabilities (B, atoms) of the returns of the actions taken, from (B, actions, atoms)."""
    rows = torch.arange(len(actions), device=actions.device)
    return logits[rows, actions].log_softmax(-1)


def double_q_targets(
    rewards: Tensor, discounts: Tensor, best: Tensor, values: Tensor, atoms: Tensor
) -> Tensor:
    """Where the return distribution should be: the actions by one network, their logits by another."""
    rows = torch.arange(len(best), device=best.device)
    return projected(values[rows, best].softmax(-1), rewards, discounts, atoms)
