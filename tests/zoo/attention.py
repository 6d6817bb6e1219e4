"""Attention in the layouts that users write it in."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .convolutional import image
from .entry import Family

FAMILY = Family("attention")
WIDTH, HEADS, LENGTH, VOCABULARY = 32, 4, 8, 50


def tokens() -> Tensor:
    return torch.randint(0, VOCABULARY, (2, LENGTH))


class FeedForward(nn.Sequential):
    def __init__(self, width: int = WIDTH):
        super().__init__(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))


class FusedAttention(nn.Module):
    """One projection for queries, keys and values, split as vision transformers do."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))


class CausalByHand(FusedAttention):
    """GPT-2's layout: split in three first, then heads; softmax written out."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(d, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, d))


class EinsumAttention(nn.Module):
    """Separate projections, heads as an axis of einsum."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        q, k, v = (
            layer(t).unflatten(-1, (self.heads, -1))
            for layer, t in ((self.q, x), (self.k, context), (self.v, context))
        )
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).div(q.shape[-1] ** 0.5).softmax(dim=-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


class TalkingHeads(FusedAttention):
    """Heads are mixed before and after the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(HEADS, HEADS, bias=False), nn.Linear(HEADS, HEADS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q @ k.mT) * q.shape[-1] ** -0.5
        weights = self.before(scores.permute(0, 2, 3, 1)).softmax(2)
        weights = self.after(weights).permute(0, 3, 1, 2)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, d))


class LinearAttention(FusedAttention):
    """elu + 1 features in place of the softmax."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state, total = k.mT @ v, k.sum(2, keepdim=True)
        out = (q @ state) / (q * total).sum(-1, keepdim=True)
        return self.out(out.transpose(1, 2).reshape(b, n, d))


class WindowAttention(FusedAttention):
    """Swin's windows with a learned table of relative position biases."""

    WINDOW = 4

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros((2 * self.WINDOW - 1) ** 2, HEADS))
        grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        offset = (grid[:, :, None] - grid[:, None, :]) + self.WINDOW - 1
        self.index: Tensor
        self.register_buffer("index", offset[0] * (2 * self.WINDOW - 1) + offset[1])

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape  # 64 tokens are an 8×8 image: four windows of 16
        x = x.view(b, 2, 4, 2, 4, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, d)
        q, k, v = self.qkv(x).reshape(-1, 16, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index.view(-1)].view(16, 16, HEADS).permute(2, 0, 1)
        weights = (q * q.shape[-1] ** -0.5 @ k.mT + bias).softmax(-1)
        x = self.out((weights @ v).transpose(1, 2).reshape(-1, 16, d))
        return x.view(b, 2, 2, 4, 4, d).permute(0, 1, 3, 2, 4, 5).reshape(b, n, d)


class Block(nn.Module):
    """Pre-norm, or none at all."""

    def __init__(self, attention: nn.Module, norm: bool = True):
        super().__init__()
        self.attention, self.feed = attention, FeedForward()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH) if norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Language(nn.Module):
    def __init__(self, *blocks: nn.Module):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class Vision(nn.Module):
    def __init__(self, *blocks: nn.Module, patch: int = 4):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, patch, patch)
        self.cls = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.02)
        self.blocks, self.norm, self.head = nn.Sequential(*blocks), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


@FAMILY.entry("Swin windows with a bias table")
def _() -> tuple[nn.Module, Tensor]:
    patches = nn.Sequential(nn.Conv2d(3, WIDTH, 2, 2), nn.Flatten(2))
    return nn.Sequential(
        patches, Transpose(), Block(WindowAttention()), Block(WindowAttention()), MeanHead()
    ), image()


class Transpose(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class MeanHead(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mean(1))


FAMILY.add("ViT", lambda: (Vision(Block(FusedAttention()), Block(FusedAttention())), image()))
FAMILY.add("ViT without norms", lambda: (Vision(Block(FusedAttention(), norm=False)), image()))
FAMILY.add("GPT", lambda: (Language(Block(CausalByHand()), Block(CausalByHand())), tokens()), causal=1)
FAMILY.add("GPT without norms", lambda: (Language(Block(CausalByHand(), norm=False)), tokens()), causal=1)
FAMILY.add(
    "einsum attention", lambda: (Language(Block(EinsumAttention()), Block(EinsumAttention())), tokens())
)
FAMILY.add("talking heads", lambda: (Language(Block(TalkingHeads()), Block(TalkingHeads())), tokens()))
FAMILY.add(
    "linear attention", lambda: (Language(Block(LinearAttention()), Block(LinearAttention())), tokens())
)
