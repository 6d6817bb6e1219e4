"""Sequence models without attention: convolutions through time, scans and recurrences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import LENGTH, VOCABULARY, WIDTH, tokens
from .entry import Family
from .multilayer import RMSNorm

FAMILY = Family("sequence")


class CausalConv1d(nn.Conv1d):
    def __init__(self, inside: int, outside: int, dilation: int = 1):
        super().__init__(inside, outside, 2, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (self.dilation[0], 0)))


class WaveNet(nn.Module):
    """Gated dilated convolutions with residual and skip paths."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = CausalConv1d(3, 16)
        self.filters = nn.ModuleList(CausalConv1d(16, 16, 2**i) for i in range(2))
        self.gates = nn.ModuleList(CausalConv1d(16, 16, 2**i) for i in range(2))
        self.residuals, self.skips = (nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(2)) for _ in range(2))
        self.post, self.head = nn.Conv1d(16, 16, 1), nn.Conv1d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, skip = self.stem(x), torch.zeros(())
        for wave, gate, residual, side in zip(
            self.filters, self.gates, self.residuals, self.skips, strict=True
        ):
            y = torch.tanh(wave(x)) * torch.sigmoid(gate(x))
            skip = skip + side(y)
            x = x + residual(y)
        return self.head(F.relu(self.post(F.relu(skip))))


class TemporalBlock(nn.Module):
    def __init__(self, inside: int, outside: int, dilation: int):
        super().__init__()
        self.first, self.second = (
            CausalConv1d(inside, outside, dilation),
            CausalConv1d(outside, outside, dilation),
        )
        self.short = nn.Conv1d(inside, outside, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.short(x))


class Mamba(nn.Module):
    """Selective state space: the step size passes a softplus, the input a convolution and SiLU."""

    def __init__(self, states: int = 4, rank: int = 6):
        super().__init__()
        self.norm, self.states, self.rank = RMSNorm(WIDTH), states, rank
        self.in_proj, self.out_proj = (
            nn.Linear(WIDTH, 4 * WIDTH, bias=False),
            nn.Linear(2 * WIDTH, WIDTH, bias=False),
        )
        self.conv = nn.Conv1d(2 * WIDTH, 2 * WIDTH, 3, groups=2 * WIDTH, padding=2)
        self.x_proj, self.dt_proj = nn.Linear(2 * WIDTH, rank + 2 * states), nn.Linear(rank, 2 * WIDTH)
        self.log_a = nn.Parameter(torch.arange(1, states + 1).float().log().repeat(2 * WIDTH, 1))
        self.skip = nn.Parameter(torch.ones(2 * WIDTH))

    def forward(self, stream: Tensor) -> Tensor:
        x, gate = self.in_proj(self.norm(stream)).chunk(2, dim=-1)
        x = F.silu(self.conv(x.mT)[..., : x.shape[1]].mT)
        low, b, c = self.x_proj(x).split([self.rank, self.states, self.states], dim=-1)
        step = F.softplus(self.dt_proj(low))
        decay = torch.exp(step[..., None] * -self.log_a.exp())
        drive = step[..., None] * b[:, :, None] * x[..., None]
        state, out = torch.zeros_like(drive[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            out.append((state * c[:, t, None]).sum(-1))
        return stream + self.out_proj((torch.stack(out, 1) + self.skip * x) * F.silu(gate))


class Retention(nn.Module):
    """q·k products with exponential decay and no softmax; output gate; a norm per head."""

    def __init__(self, heads: int = 4):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.gate, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(5))
        self.group = nn.LayerNorm(WIDTH // heads, elementwise_affine=False)

    def forward(self, stream: Tensor) -> Tensor:
        x = self.norm(stream)
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        age = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        decay = torch.where(age >= 0, 0.9 ** age.clamp(min=0), 0.0).to(x)
        y = self.group(((q @ k.mT) * decay) @ v).transpose(1, 2).flatten(2)
        return stream + self.out(F.silu(self.gate(x)) * y)


class ChannelMix(nn.Module):
    """RWKV: token shift, receptance gate and squared ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix_k, self.mix_r = nn.Parameter(torch.rand(1, 1, WIDTH)), nn.Parameter(torch.rand(1, 1, WIDTH))
        self.key, self.receptance = nn.Linear(WIDTH, 64, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(64, WIDTH, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        x = self.norm(stream)
        past = F.pad(x, (0, 0, 1, -1))
        k = torch.square(torch.relu(self.key(x * self.mix_k + past * (1 - self.mix_k))))
        return stream + torch.sigmoid(self.receptance(x * self.mix_r + past * (1 - self.mix_r))) * self.value(
            k
        )


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], **options: Any):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(VOCABULARY, 16), kind(16, 24, batch_first=True, **options)
        self.head = nn.Linear(48 if options.get("bidirectional") else 24, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


def _language(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
    )


def _waves() -> Tensor:
    return torch.randn(2, 3, LENGTH)


def _tcn() -> nn.Module:
    return nn.Sequential(TemporalBlock(3, 16, 1), TemporalBlock(16, 16, 2), nn.Conv1d(16, 4, 1))


FAMILY.add("WaveNet", lambda: (WaveNet(), _waves()), causal=2)
FAMILY.add("TCN", lambda: (_tcn(), _waves()), causal=2)
FAMILY.add("Mamba", lambda: (_language(Mamba(), Mamba()), tokens()), causal=1)
FAMILY.add("retention", lambda: (_language(Retention(), Retention()), tokens()), causal=1)
FAMILY.add("RWKV channel mix", lambda: (_language(ChannelMix(), ChannelMix()), tokens()), causal=1)
LAYERNORM = {"rnn": "layernorm"}
FAMILY.add("LSTM", lambda: (Recurrent(nn.LSTM), tokens()), options=LAYERNORM, causal=1)
FAMILY.add(
    "LSTM, two layers", lambda: (Recurrent(nn.LSTM, num_layers=2), tokens()), options=LAYERNORM, causal=1
)
FAMILY.add("LSTM, both ways", lambda: (Recurrent(nn.LSTM, bidirectional=True), tokens()), options=LAYERNORM)
FAMILY.add("GRU", lambda: (Recurrent(nn.GRU), tokens()), options=LAYERNORM, causal=1)
FAMILY.add("RNN tanh", lambda: (Recurrent(nn.RNN), tokens()), options=LAYERNORM, causal=1)
