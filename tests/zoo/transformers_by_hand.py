"""Larger attention models: Llama-like, encoder-decoder, Perceiver, torch's own; and MLP-Mixer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import HEADS, LENGTH, VOCABULARY, WIDTH, Block, EinsumAttention, FeedForward, tokens
from .convolutional import image
from .entry import Family
from .multilayer import RMSNorm

FAMILY = Family("transformer")


def rotate(x: Tensor) -> Tensor:
    """Rotary position embedding on (batch, head, token, feature)."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[2])[:, None] * 100.0 ** (-torch.arange(half) / half)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1).to(x)


class GroupedAttention(nn.Module):
    """Two key-value heads for four query heads, rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, 2 * self.size, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        k, v = rotate(k).repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        out = F.scaled_dot_product_attention(rotate(q), k, v, is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 48, bias=False), nn.Linear(WIDTH, 48, bias=False)
        self.down = nn.Linear(48, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class FusedGEGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 96), nn.Linear(48, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.up(x).chunk(2, dim=-1)
        return self.down(value * F.gelu(gate))


class LlamaBlock(nn.Module):
    def __init__(self, feed: nn.Module):
        super().__init__()
        self.attention, self.feed = GroupedAttention(), feed
        self.norm1, self.norm2 = RMSNorm(WIDTH), RMSNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Llama(nn.Sequential):
    def __init__(self, *feeds: nn.Module):
        blocks = [LlamaBlock(feed) for feed in feeds]
        super().__init__(
            nn.Embedding(VOCABULARY, WIDTH), *blocks, RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
        )


def glu_net() -> nn.Module:
    gated = [nn.Linear(12, 64), nn.GLU(), nn.Linear(32, 64), nn.GLU(), nn.Linear(32, 5)]
    return nn.Sequential(*gated)


FAMILY.add("Llama with SwiGLU", lambda: (Llama(SwiGLU(), SwiGLU()), tokens()), causal=1)
FAMILY.add("Llama with fused GEGLU", lambda: (Llama(FusedGEGLU(), FusedGEGLU()), tokens()), causal=1)
FAMILY.add("nn.GLU", lambda: (glu_net(), torch.randn(2, 12)))


class EncoderDecoder(nn.Module):
    """Cross-attention from target to source."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder, self.decoder, self.cross = (
            Block(EinsumAttention()),
            Block(EinsumAttention()),
            EinsumAttention(),
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.embed(source))
        x = self.decoder(self.embed(target))
        return self.head(x + self.cross(self.norm(x), memory))


class Perceiver(nn.Module):
    """Learned latents read the input, then talk among themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, WIDTH))
        self.read, self.process = EinsumAttention(), Block(EinsumAttention())
        self.embed, self.head = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(len(x), -1, -1)
        latents = latents + self.read(latents, self.embed(x))
        return self.head(self.process(latents).mean(1))


class AdditiveAttention(nn.Module):
    """softmax over tokens of v·tanh(W x + U query)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, WIDTH)
        self.key, self.query, self.score = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24), nn.Linear(24, 1)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.embed(x))
        energy = torch.tanh(self.key(x) + self.query(x.mean(1, keepdim=True)))
        return self.head((self.score(energy).softmax(1) * x).sum(1))


class TwoWidths(nn.Module):
    """nn.MultiheadAttention with keys and values of their own widths."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, kdim=12, vdim=10, batch_first=True)
        self.feed = FeedForward()

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.feed(self.attention(query, key, value, need_weights=False)[0])


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.across, self.along = FeedForward(16), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.blocks = nn.Conv2d(3, WIDTH, 4, 4), nn.Sequential(MixerBlock(), MixerBlock())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.patch(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


def _sequence(width: int = WIDTH) -> Tensor:
    return torch.randn(2, LENGTH, width)


def _encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


FAMILY.add("encoder-decoder", lambda: (EncoderDecoder(), (tokens(), tokens())))
FAMILY.add("Perceiver", lambda: (Perceiver(), _sequence(6)))
FAMILY.add("additive attention", lambda: (AdditiveAttention(), _sequence(6)))
FAMILY.add("MLP-Mixer", lambda: (Mixer(), image()))
FAMILY.add(
    "nn.MultiheadAttention, kdim and vdim", lambda: (TwoWidths(), (_sequence(), _sequence(12), _sequence(10)))
)
FAMILY.add("nn.TransformerEncoder", lambda: (_encoder(False), _sequence()))
FAMILY.add("nn.TransformerEncoder, norm first", lambda: (_encoder(True), _sequence()))
FAMILY.add(
    "nn.Transformer",
    lambda: (nn.Transformer(WIDTH, HEADS, 1, 1, 64, batch_first=True), (_sequence(), _sequence())),
)
