"""Networks that learn as they should, each with its optimizer, its batch and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import nap


@dataclass
class Setup:
    """What a diagnosis takes, and how to go on training."""

    model: nn.Module
    optimizer: Any
    probe: Tensor
    loss: Callable[[Any], Tensor]
    batches: Callable[[], tuple[Tensor, Tensor]]
    objective: Callable[[Any, Tensor], Tensor] = F.cross_entropy

    def train(self, updates: int) -> None:
        for _ in range(updates):
            x, y = self.batches()
            self.optimizer.zero_grad()
            self.objective(self.model(x), y).backward()
            self.optimizer.step()


@cache
def digits() -> tuple[Tensor, Tensor]:
    """All digits and their classes."""
    data = load_digits()
    return torch.tensor(data.data / 16.0, dtype=torch.float32), torch.tensor(data.target)


def on_digits(
    model: nn.Module, *, nap_too: bool = False, lr: float = 1e-3, shape: tuple[int, ...] = (64,), **kinds: Any
) -> Setup:
    """A classifier of digits in batches of 64."""
    x, y = digits()
    x = x.view(-1, *shape)
    if nap_too:
        nap.normalize_(model, x[:2])
    optimizer = kinds.get("kind", torch.optim.Adam)(model.parameters(), lr=lr, **kinds.get("options", {}))
    if nap_too:
        nap.Projector(model).attach(optimizer)
    generator = torch.Generator().manual_seed(1)

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(x), (64,), generator=generator)
        return x[chosen], y[chosen]

    return Setup(model, optimizer, x[:256], lambda out: F.cross_entropy(out, y[:256]), batch)


def mlp(width: int = 128) -> nn.Sequential:
    hidden = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def cnn() -> nn.Sequential:
    """With BatchNorm, as is usual."""
    blocks = [
        layer
        for a, b in ((1, 16), (16, 32))
        for layer in (
            nn.Conv2d(a, b, 3, padding=1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 4, 10))


class Block(nn.Module):
    """Pre-norm attention and a hidden layer; `zero` starts the branches at zero."""

    def __init__(self, width: int, zero: bool):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.hidden, self.act, self.out = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        if zero:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.attention.out_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        n = self.first(x)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = x + self.attention(n, n, n, attn_mask=mask, need_weights=False)[0]
        return x + self.out(self.act(self.hidden(self.second(x))))


class Language(nn.Module):
    """Predicts the next of 16 symbols."""

    def __init__(self, width: int = 32, zero: bool = False):
        super().__init__()
        self.table, self.place = nn.Embedding(16, width), nn.Embedding(12, width)
        self.blocks = nn.Sequential(Block(width, zero), Block(width, zero))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.place(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class Recurrent(nn.Module):
    """A GRU that reads a sequence and predicts each next symbol."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.head = (
            nn.Embedding(16, 32),
            nn.GRU(32, 64, batch_first=True),
            nn.Linear(64, 16),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(self.table(tokens))[0])


def on_sequences(model: nn.Module) -> Setup:
    """Sequences in which each symbol follows from the one before, but for a tenth of noise."""
    generator = torch.Generator().manual_seed(1)
    follows = torch.randperm(16, generator=generator)

    def batch(count: int = 32) -> tuple[Tensor, Tensor]:
        rows = [torch.randint(16, (count,), generator=generator)]
        for _ in range(12):
            noise = torch.rand(count, generator=generator) < 0.1
            rows.append(
                torch.where(noise, torch.randint(16, (count,), generator=generator), follows[rows[-1]])
            )
        tokens = torch.stack(rows, 1)
        return tokens[:, :-1], tokens[:, 1:]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    x, y = batch(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Setup(model, optimizer, x, lambda out: loss(out, y), batch, loss)


def policy() -> Setup:
    """Tanh, orthogonal, a head with gain 0.01; policy gradients of a contextual bandit."""
    layers = [nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)]
    for layer in layers[::2]:
        gain = 0.01 if layer is layers[-1] else 2**0.5
        nn.init.orthogonal_(layer.weight, gain)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    model = nn.Sequential(*layers)
    generator = torch.Generator().manual_seed(1)
    best = torch.randn(8, 4, generator=generator)

    def batch(count: int = 64) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 8, generator=generator)
        return x, x @ best

    def loss(logits: Tensor, rewards: Tensor) -> Tensor:
        return -(logits.softmax(-1) * (rewards - rewards.mean(-1, keepdim=True))).sum(-1).mean()

    x, y = batch(256)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, eps=1e-5)
    return Setup(model, optimizer, x, lambda out: loss(out, y), batch, loss)


HEALTHY: dict[str, Callable[[], Setup]] = {
    "MLP": lambda: on_digits(mlp()),
    "MLP, SGD": lambda: on_digits(mlp(), kind=torch.optim.SGD, lr=0.1, options={"momentum": 0.9}),
    "MLP, NaP": lambda: on_digits(mlp(), nap_too=True),
    "CNN, BatchNorm": lambda: on_digits(cnn(), shape=(1, 8, 8)),
    "CNN, BatchNorm, NaP": lambda: on_digits(cnn(), nap_too=True, shape=(1, 8, 8)),
    "transformer": lambda: on_sequences(Language()),
    "transformer, zero branches": lambda: on_sequences(Language(zero=True)),
    "policy": policy,
    "GRU": lambda: on_sequences(Recurrent()),
}


def made(name: str, seed: int = 0) -> Setup:
    """One of them, from a seed."""
    torch.manual_seed(seed)
    return HEALTHY[name]()


def moments(setup: Setup, updates: tuple[int, ...] = (0, 50, 500)) -> Iterator[int]:
    """Trains on, and stops after so many updates."""
    done = 0
    for count in updates:
        setup.train(count - done)
        done = count
        yield count
