"""Generative and conditioned networks, and those that share or make weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Family

FAMILY = Family("generative")


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 32), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(32, 6), nn.Linear(32, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 20), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        mean, deviation = self.mean(h), torch.exp(0.5 * self.log_variance(h))
        return self.decoder(mean + deviation * torch.randn(6).to(mean))


class Coupling(nn.Module):
    """Affine coupling of a normalising flow: one half scales and shifts the other."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        log_scale, shift = self.net(a).chunk(2, dim=-1)
        return torch.cat([b * torch.exp(torch.tanh(log_scale)) + shift, a], dim=-1)


class Siamese(nn.Module):
    """One module called twice in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
        self.compare = nn.Linear(16, 5)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.compare(F.relu(self.tower(a) - self.tower(b)))


class TiedAutoencoder(nn.Module):
    """The decoder is the encoder's weight, transposed; it gives the output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(20, 32)
        self.bias = nn.Parameter(torch.zeros(20))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(self.encoder(x)), self.encoder.weight.t(), self.bias)


class HyperNetwork(nn.Module):
    """One network writes the weights of another, sample by sample."""

    def __init__(self) -> None:
        super().__init__()
        self.writer = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 6 * 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        written = self.writer(condition).unflatten(-1, (6, 8))
        return self.head(F.relu(torch.bmm(x, written)))


class FiLM(nn.Module):
    """A condition scales and shifts features between convolution and activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)
        self.condition = nn.Sequential(nn.Linear(5, 32), nn.SiLU())
        self.scale, self.shift = nn.Linear(32, 16), nn.Linear(32, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        c = self.condition(condition)
        x = F.relu(self.first(x))
        x = F.relu(self.second(x) * (1 + self.scale(c)[..., None, None]) + self.shift(c)[..., None, None])
        return self.head(x.mean((2, 3)))


class DeepONet(nn.Module):
    """Branch and trunk meet in an inner product, which is the output."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 16))
        self.trunk = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 16))

    def forward(self, function: Tensor, place: Tensor) -> Tensor:
        return (self.branch(function) * self.trunk(place)).sum(-1)


class TimeBlock(nn.Module):
    """A diffusion U-Net's block: GroupNorm, SiLU, and the time embedding added between."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(32, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[..., None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 32))
        self.blocks, self.norm = nn.ModuleList(TimeBlock() for _ in range(2)), nn.GroupNorm(4, 16)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angle = time[:, None] * torch.exp(-math.log(100.0) * torch.arange(4) / 4).to(x)
        embedding = self.time(torch.cat([angle.sin(), angle.cos()], dim=-1))
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, embedding)
        return self.head(F.silu(self.norm(x)))


class DeepSet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32))
        self.all = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.each(x).sum(1))


class MessagePassing(nn.Module):
    """Messages along edges, summed at the receiver."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.message, self.update = nn.Linear(6, 32), nn.Linear(64, 32), nn.Linear(64, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        x = self.embed(x)
        for _ in range(2):
            messages = F.relu(self.message(torch.cat([x[source], x[target]], dim=-1)))
            gathered = torch.zeros_like(x).index_add(0, target, messages)
            x = x + F.relu(self.update(torch.cat([x, gathered], dim=-1)))
        return self.head(x)


FAMILY.add("VAE", lambda: (VAE(), torch.rand(2, 20)))
FAMILY.add("coupling flow", lambda: (nn.Sequential(Coupling(), Coupling()), torch.randn(2, 8)))
FAMILY.add("siamese", lambda: (Siamese(), (torch.randn(2, 12), torch.randn(2, 12))))
FAMILY.add("tied autoencoder", lambda: (TiedAutoencoder(), torch.randn(2, 20)))
FAMILY.add("hypernetwork", lambda: (HyperNetwork(), (torch.randn(2, 3, 6), torch.randn(2, 5))))
FAMILY.add("FiLM", lambda: (FiLM(), (torch.randn(2, 3, 8, 8), torch.randn(2, 5))))
FAMILY.add("DeepONet", lambda: (DeepONet(), (torch.randn(2, 10), torch.randn(2, 2))))
FAMILY.add(
    "diffusion U-Net block", lambda: (Denoiser(), (torch.randn(2, 3, 8, 8), torch.tensor([3.0, 40.0])))
)
FAMILY.add("deep set", lambda: (DeepSet(), torch.randn(2, 7, 6)))
FAMILY.add(
    "message passing",
    lambda: (MessagePassing(), (torch.randn(6, 6), torch.randint(0, 6, (12,)), torch.randint(0, 6, (12,)))),
    batched=False,
)
