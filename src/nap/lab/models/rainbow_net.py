"""Rainbow's network as in DQN Zoo: convolutions, then two noisy streams over a distribution of values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

Torso = Sequence[tuple[int, int, int]]  # channels, kernel, stride of each convolution
DQN: Torso = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
TINY: Torso = ((16, 3, 1), (32, 3, 2))  # for frames that DQN's does not fit on
MINATAR: Torso = ((16, 3, 1),)  # as its authors have it, for boards with a channel for each kind of thing
SIGMA = 0.1  # DQN Zoo's; the Rainbow paper has 0.5


class NoisyLinear(nn.Module):
    """μ(x) + σ(x ⊙ ε_in) ⊙ ε_out, two affine maps and a factorised noise (ε_in, ε_out) from outside.

    In this form each row of a batch can have a noise of its own at no cost: N games that act at once
    explore as N agents would. `bias` is μ's; σ always has one.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True):
        super().__init__()
        self.mu = nn.Linear(inputs, outputs, bias=bias)  # U(±1/√fan-in), as PyTorch does by itself
        self.sigma = nn.Linear(inputs, outputs)
        for parameter in self.sigma.parameters():
            nn.init.constant_(parameter, SIGMA / math.sqrt(inputs))

    @property
    def noise_size(self) -> int:
        return self.mu.in_features + self.mu.out_features

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        into, out = noise.split((self.mu.in_features, self.mu.out_features), -1)
        return self.mu(x) + self.sigma(x * into) * out


class RainbowNet(nn.Module):
    """Stacked frames, 0 to 255, and noise (B or 1, n) → logits (B, actions, atoms).

    Frames are (B, stack, H, W), or (B, stack, C, H, W) where they have channels.

    >>> net = RainbowNet(18)
    >>> sum(p.numel() for p in net.parameters())
    7495785
    >>> net(torch.zeros(2, 4, 84, 84), net.noise(1)).shape
    torch.Size([2, 18, 51])
    """

    def __init__(
        self,
        actions: int,
        shape: tuple[int, ...] = (84, 84),
        *,
        stack: int = 4,
        torso: Torso | None = None,
        hidden: int = 512,
        atoms: int = 51,
    ):
        super().__init__()
        layers: list[nn.Module] = []
        *planes, tall, wide = shape
        shape = (tall, wide)
        torso = torso or (MINATAR if planes else DQN if min(shape) >= 36 else TINY)
        self.fold = _fold(torso[0], shape)
        channels = stack * math.prod(planes) * self.fold**2
        height, width = (size // self.fold for size in shape)
        first = (torso[0][0], torso[0][1] // self.fold, torso[0][2] // self.fold)
        for outputs, kernel, stride in (first, *torso[1:]):
            layers += [nn.Conv2d(channels, outputs, kernel, stride), nn.ReLU()]
            channels = outputs
            height, width = ((size - kernel) // stride + 1 for size in (height, width))
            if min(height, width) < 1:
                raise ValueError(f"frames of {shape[0]}×{shape[1]} are too small for convolutions {torso}")
        self.actions, self.atoms = actions, atoms
        self.torso = nn.Sequential(*layers, nn.Flatten())
        flat = channels * height * width
        self.advantage, self.advantage_relu = NoisyLinear(flat, hidden), nn.ReLU()
        self.advantage_head = NoisyLinear(hidden, actions * atoms, bias=False)
        self.value, self.value_relu = NoisyLinear(flat, hidden), nn.ReLU()
        self.value_head = NoisyLinear(hidden, atoms, bias=False)

    @property
    def noisy_layers(self) -> tuple[NoisyLinear, ...]:
        return self.advantage, self.advantage_head, self.value, self.value_head

    @property
    def noise_size(self) -> int:
        return sum(layer.noise_size for layer in self.noisy_layers)

    def noise(self, draws: int, generator: Generator | None = None) -> Tensor:
        """So many draws of all layers' noise, (draws, `noise_size`)."""
        return noise_of(self.uniform_numbers(draws, generator))

    def uniform_numbers(self, draws: int, generator: Generator | None = None) -> Tensor:
        """What `noise_of` takes, (draws, `noise_size`)."""
        some = self.value.mu.weight
        return torch.rand(draws, self.noise_size, generator=generator, device=some.device, dtype=some.dtype)

    def features(self, frames: Tensor) -> Tensor:
        """What the convolutions make of frames, (B, n)."""
        x = frames.flatten(1, -3).to(self.value.mu.weight.dtype) / 255.0
        return self.torso(F.pixel_unshuffle(x, self.fold))

    def forward(self, frames: Tensor, noise: Tensor) -> Tensor:
        x = self.features(frames)
        parts = noise.split([layer.noise_size for layer in self.noisy_layers], -1)
        advantage = self.advantage_head(self.advantage_relu(self.advantage(x, parts[0])), parts[1])
        value = self.value_head(self.value_relu(self.value(x, parts[2])), parts[3])
        advantage = advantage.view(-1, self.actions, self.atoms)
        return value.unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)


def _fold(first: tuple[int, int, int], shape: tuple[int, ...]) -> int:
    """The first convolution's stride, where each patch that it steps over can become one place.

    A kernel of 8×8 with stride 4 on 4 channels is one of 2×2 with stride 1 on 64, with the same weights:
    GPUs have fast kernels for many channels only.
    """
    _, kernel, stride = first
    return stride if all(size % stride == 0 for size in (kernel, *shape)) else 1


def noise_of(u: Tensor) -> Tensor:
    """sign(ε)·√|ε| for ε normal and cut off at ±2, from numbers that are uniform on [0, 1).

    >>> noise_of(torch.tensor([0.0, 0.5], dtype=torch.float64))
    tensor([-1.4142,  0.0000], dtype=torch.float64)
    """
    inside = math.erf(math.sqrt(2))  # P(|ε| < 2)
    normal = math.sqrt(2) * torch.erfinv((2 * u - 1) * inside)
    return normal.sign() * normal.abs().sqrt()
