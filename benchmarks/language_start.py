"""What NaP's defaults do to the commonest start of a language model: small tables, small or zero branches.

    nap data fetch text8
    python benchmarks/language_start.py                              one learning rate, three seeds: minutes
    python benchmarks/language_start.py --net zero                   4 blocks of width 128, branches at zero
    python benchmarks/language_start.py --rates 1e-3 3e-3 1e-2 --rows rows.jsonl     tuned on seeds from 100

nanogpt: 3 blocks of width 64, tied table at 0.02, residual projections at 0.02/√(2·blocks), GELU, no biases.
zero: 4 blocks of width 128, own output layer at 0.02, residual projections at zero. Both read text8 character
by character: AdamW, weight decay 0.1, cosine to zero, 600 updates of 16 × 32 characters. The bar: NaP with no
option ends at most 0.03 above normalization alone.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rate_trials import Trials, bar, compare
from torch import Tensor, nn

import nap
from nap.lab.datasets.corpus import load

EVAL_TOKENS = 65_536  # predictions that the loss is taken over
PINNED = {"output": "project", "embeddings": "project", "branches": "project"}


@dataclass(frozen=True)
class Arm:
    """What is done to the plain network; None where a step is left out."""

    normalize: dict[str, Any] | None = None
    project: dict[str, Any] | None = None


ARMS = {
    "plain": Arm(),
    "norm only": Arm({}),
    "NaP": Arm({}, {}),
    "all projected": Arm({}, PINNED),
    "output free": Arm({}, PINNED | {"output": "free"}),
    "output, tables free": Arm({}, PINNED | {"output": "free", "embeddings": "free"}),
    "all three free": Arm({}, {"output": "free", "embeddings": "free", "branches": "free"}),
    "all three grow": Arm({}, {"output": "grow", "embeddings": "grow", "branches": "grow"}),
    "gains": Arm({"gains": "small"}, {}),
}


@dataclass(frozen=True)
class Net:
    """A decoder-only transformer as nanoGPT starts it."""

    blocks: int
    width: int
    tied: bool
    zero: bool
    heads: int = 4
    length: int = 32
    std: float = 0.02
    vocabulary: int = 27  # a space and the letters

    def make(self) -> GPT:
        return GPT(self)


NETS = {"nanogpt": Net(3, 64, tied=True, zero=False), "zero": Net(4, 128, tied=False, zero=True)}


class Block(nn.Module):
    """Attention, then a hidden layer, each added to the residual stream."""

    def __init__(self, net: Net):
        super().__init__()
        width, self.heads = net.width, net.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = (
            nn.Linear(width, 4 * width, bias=False),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Tokens (B, L) → logits of the next one (B, L, vocabulary)."""

    def __init__(self, net: Net):
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(net.vocabulary, net.width),
            nn.Embedding(net.length, net.width),
        )
        self.blocks = nn.Sequential(*(Block(net) for _ in range(net.blocks)))
        self.norm, self.head = nn.LayerNorm(net.width), nn.Linear(net.width, net.vocabulary, bias=False)
        share = 0.0 if net.zero else 1 / math.sqrt(2 * net.blocks)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                branch = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=net.std * (share if branch else 1.0))
        if net.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


@cache
def text() -> tuple[Tensor, Tensor]:
    """Characters of text8 to learn from, and others."""
    corpus = load(["text8"], "bytes", limit=5_000_000)
    train, held_out = (torch.from_numpy(part.tokens.astype("int64")) for part in (corpus.train, corpus.valid))
    return _letters(train), _letters(held_out[: EVAL_TOKENS + 1])


def _letters(codes: Tensor) -> Tensor:
    """a to z are 1 to 26, all else is 0."""
    return torch.where((codes >= 97) & (codes <= 122), codes - 96, 0)


def train(
    arm: str,
    rate: float,
    seed: int,
    *,
    make: Callable[[], GPT],
    steps: int = 600,
    batch: int = 16,
    length: int = 32,
) -> float:
    """The validation loss of one network at the end."""
    tokens, held_out = text()
    torch.manual_seed(seed)
    model, how = make(), ARMS[arm]
    if how.normalize is not None:
        nap.normalize_(model, tokens[: 2 * length].view(2, length), **how.normalize)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    if how.project is not None:
        nap.Projector(model, **how.project).attach(optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2
    )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(tokens) - length, (batch, 1), generator=generator)
        strings = tokens[starts + torch.arange(length + 1)]
        loss = F.cross_entropy(model(strings[:, :-1]).flatten(0, 1), strings[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        logits = model(held_out[:-1].view(-1, length))
        return F.cross_entropy(logits.flatten(0, 1), held_out[1:]).item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--net", choices=list(NETS), default="nanogpt")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=["plain", "norm only", "NaP"])
    parser.add_argument("--rates", nargs="+", type=float, default=[3e-3], help="several: tuned for each arm")
    parser.add_argument("--seeds", type=int, default=3, help="of the results: 0, 1, …")
    parser.add_argument("--tuning-seeds", type=int, default=2, help="of the tuning: 100, 101, …")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--rows", type=Path, help="keep finished trials here, and do not run them again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    learn = partial(train, make=NETS[options.net].make, steps=options.steps)
    trials = Trials(learn, options.rows, {"net": options.net, "steps": options.steps})
    means = compare(
        trials, options.arms, options.rates, seeds=options.seeds, tuning_seeds=options.tuning_seeds
    )
    bar(means, "NaP", "norm only", 0.03)


if __name__ == "__main__":
    main()
