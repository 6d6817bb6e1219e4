"""A plain decoder-only transformer (Appendix B.3): what `nap.normalize_` gets to see in the language lab.

Pre-norm blocks as in T5: no biases, ReLU, attention and a hidden layer of four times the width.
`norm="none"` leaves the residual stream without norms.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

BackboneNorm = Literal["layer", "none"]
Branches = Literal["unit", "share"]
Positions = Literal["learnt", "sines"]


class Attention(nn.Module):
    """Causal attention with `heads` heads."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} cannot be divided among {heads} heads")
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then a hidden layer, each added to the residual stream."""

    def __init__(self, width: int, heads: int, norm: BackboneNorm):
        super().__init__()
        self.attention_norm, self.hidden_norm = _norm(width, norm), _norm(width, norm)
        self.attention = Attention(width, heads)
        self.up, self.activation = nn.Linear(width, 4 * width, bias=False), nn.ReLU()
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(self.activation(self.up(self.hidden_norm(x))))


class Sines(nn.Module):
    """Positions → `width` sines and cosines of them, of wavelengths from 2π to 10,000 · 2π; nothing learnt.

    >>> Sines(100, 8)(torch.tensor([3, 99])).square().sum(-1)
    tensor([4., 4.])
    """

    table: Tensor

    def __init__(self, length: int, width: int):
        super().__init__()
        if width % 2:
            raise ValueError(f"a width of {width} cannot be halved into sines and cosines; make it even")
        angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], 1), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        return self.table[positions]


class Transformer(nn.Module):
    """Tokens (B, L ≤ length) → logits of the next token (B, L, vocabulary).

    Args:
        branches: how large a branch is at the start: as the stream that it is added to, as in T5; or its
            share of one, 1/√(2·blocks), as is usual elsewhere. A projected branch keeps the size that it has.
        positions: a table of them that is learnt, or sines (Vaswani et al.); both as large as tokens.
        tied: the output layer is the table of tokens.
        recompute: keep no activations inside blocks, compute them again in the backward pass.

    >>> net = Transformer(256, 512, blocks=4, heads=8, width=256)
    >>> sum(p.numel() for p in net.parameters())
    3412480
    >>> net(torch.zeros(2, 7, dtype=torch.int64)).shape
    torch.Size([2, 7, 256])
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        *,
        blocks: int = 4,
        heads: int = 8,
        width: int = 256,
        norm: BackboneNorm = "layer",
        branches: Branches = "unit",
        positions: Positions = "learnt",
        tied: bool = False,
        recompute: bool = False,
    ):
        super().__init__()
        self.length, self.width, self.recompute = length, width, recompute
        table = Sines if positions == "sines" else nn.Embedding
        self.tokens, self.positions = nn.Embedding(vocabulary, width), table(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, norm) for _ in range(blocks))
        self.final_norm = _norm(width, norm)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        self.reset_parameters(branches)

    def reset_parameters(self, branches: Branches = "unit") -> None:
        """Every layer of a normalised signal starts with unit variance, or a branch with its share of it."""
        share = 1.0 if branches == "unit" else 1 / math.sqrt(2 * len(self.blocks))
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                gain = share if name.endswith(("out.weight", "down.weight")) else 1.0
                table = name in ("tokens.weight", "positions.weight")
                std = math.sqrt(0.5) if table else gain / math.sqrt(parameter.shape[1])
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.shape[1] > self.length:
            raise ValueError(f"{tokens.shape[1]} tokens are more than the {self.length} positions there are")
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute and self.training else block(x)
        x = self.final_norm(x)
        if self.head is None:
            return F.linear(x / math.sqrt(self.width), self.tokens.weight)
        return self.head(x)


def _norm(width: int, norm: BackboneNorm) -> nn.Module:
    return nn.LayerNorm(width) if norm == "layer" else nn.Identity()
