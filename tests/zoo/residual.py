"""Residual convolutional networks, with and without norms and gates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .convolutional import image
from .entry import Family

FAMILY = Family("residual")
WIDTH = 16
NormFactory = Callable[[int], nn.Module]


def layer_norm_2d(channels: int) -> nn.Module:
    return nn.GroupNorm(1, channels)


class BlockV1(nn.Module):
    """conv norm relu conv norm (+ shortcut) relu."""

    def __init__(self, channels: int, width: int, stride: int, norm: NormFactory):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = norm(width), norm(width)
        self.short = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), norm(width))
        if stride == 1:
            self.short = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += self.short(x)
        return F.relu(out)


class BlockV2(BlockV1):
    """norm relu conv norm relu conv (+ shortcut)."""

    def __init__(self, channels: int, width: int, stride: int, norm: NormFactory):
        super().__init__(channels, width, stride, norm)
        self.norm1 = norm(channels)
        if stride != 1:
            self.short = nn.Sequential(nn.Conv2d(channels, width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(x))
        short = self.short(out) if len(self.short) else x
        return short + self.conv2(F.relu(self.norm2(self.conv1(out))))


def _resnet(block: type[BlockV1], norm: NormFactory) -> tuple[nn.Module, Tensor]:
    stem = [nn.Conv2d(3, WIDTH, 3, padding=1, bias=False)]
    after: list[nn.Module] = [norm(WIDTH), nn.ReLU()] if block is BlockV1 else []
    blocks = [block(WIDTH, WIDTH, 1, norm), block(WIDTH, 2 * WIDTH, 2, norm)]
    before: list[nn.Module] = [norm(2 * WIDTH), nn.ReLU()] if block is BlockV2 else []
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * WIDTH, 5)]
    return nn.Sequential(*stem, *after, *blocks, *before, *head), image(size=8)


NORMS: dict[str, NormFactory] = {
    "BatchNorm": nn.BatchNorm2d,
    "LayerNorm": layer_norm_2d,
    "no norm": nn.Identity,
}
for norm_name, factory in NORMS.items():
    FAMILY.add(f"ResNet v1, {norm_name}", partial(_resnet, BlockV1, factory))
    FAMILY.add(f"ResNet v2, {norm_name}", partial(_resnet, BlockV2, factory))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.expand(F.relu(self.reduce(x.mean((2, 3), keepdim=True)))))


class InvertedResidual(nn.Module):
    def __init__(self, channels: int, activation: Callable[[], nn.Module], excite: bool):
        super().__init__()
        wide = 2 * channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            activation(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            activation(),
            *([SqueezeExcite(wide)] if excite else []),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _mobilenet(activation: Callable[[], nn.Module], excite: bool) -> nn.Module:
    stem = [nn.Conv2d(3, WIDTH, 3, 2, 1, bias=False), nn.BatchNorm2d(WIDTH), activation()]
    blocks = [InvertedResidual(WIDTH, activation, excite) for _ in range(2)]
    head = [nn.Conv2d(WIDTH, 32, 1), nn.BatchNorm2d(32), activation(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*stem, *blocks, *head, nn.Linear(32, 5))


FAMILY.add("MobileNetV2", lambda: (_mobilenet(nn.ReLU6, False), image(size=8)))
FAMILY.add("MobileNetV3", lambda: (_mobilenet(nn.Hardswish, True), image(size=8)))


class ConvNeXtBlock(nn.Module):
    """LayerNorm over channels last, and a layer scale that starts almost at zero."""

    def __init__(self, channels: int):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(1e-6 * torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


@FAMILY.entry("ConvNeXt")
def _() -> tuple[nn.Module, Tensor]:
    stem = [nn.Conv2d(3, WIDTH, 4, 4), nn.GroupNorm(1, WIDTH), ConvNeXtBlock(WIDTH), ConvNeXtBlock(WIDTH)]
    return nn.Sequential(
        *stem, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)
    ), image()


class GatedResidual(nn.Module):
    """x + α·f(x) with α at zero (ReZero), and highway-like gates of full width."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner = nn.Linear(8, 32), nn.Linear(32, 32)
        self.carry, self.head = nn.Linear(32, 32), nn.Linear(32, 5)
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.alpha * torch.tanh(self.inner(x))
        gate = torch.sigmoid(self.carry(x))
        return self.head(gate * x + (1 - gate) * F.relu(x))


FAMILY.add("gated residual", lambda: (GatedResidual(), torch.randn(2, 8)))
