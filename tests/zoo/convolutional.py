"""Plain convolutional networks: sequences, images, volumes; there and back."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Family

FAMILY = Family("convolution")


def image(channels: int = 3, size: int = 16) -> Tensor:
    return torch.randn(2, channels, size, size)


@FAMILY.entry("conv1d net")
def _() -> tuple[nn.Module, Tensor]:
    layers = [
        nn.Conv1d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv1d(16, 16, 3, stride=2),
        nn.GELU(),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, nn.Linear(16 * 7, 5)), torch.randn(2, 3, 16)


@FAMILY.entry("conv2d net")
def _() -> tuple[nn.Module, Tensor]:
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3), nn.ReLU(inplace=True)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 5)]
    return nn.Sequential(*layers, *head), image()


@FAMILY.entry("conv3d net")
def _() -> tuple[nn.Module, Tensor]:
    layers = [
        nn.Conv3d(2, 8, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool3d(2),
        nn.Conv3d(8, 8, 3),
        nn.SiLU(),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, nn.Linear(8 * 8, 3)), torch.randn(2, 2, 8, 8, 8)


@FAMILY.entry("pool before activation")
def _() -> tuple[nn.Module, Tensor]:
    layers = [
        nn.Conv2d(3, 16, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.AvgPool2d(2),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 4, 5)), image()


@FAMILY.entry("autoencoder of transposed convolutions")
def _() -> tuple[nn.Module, Tensor]:
    down = [nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 24, 4, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Sigmoid()]
    return nn.Sequential(*down, *up), image()


@FAMILY.entry("depthwise-separable")
def _() -> tuple[nn.Module, Tensor]:
    layers = [
        nn.Conv2d(3, 16, 1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, groups=16, padding=1),
        nn.Conv2d(16, 32, 1),
    ]
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)), image()


def _vgg(batch_norm: bool) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 0, 24, 24, 0):
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, width, 3, padding=1))
        layers += [nn.BatchNorm2d(width)] if batch_norm else []
        layers.append(nn.ReLU(True))
        channels = width
    head = [nn.Flatten(), nn.Linear(24 * 16, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 5)]
    return nn.Sequential(*layers, *head)


FAMILY.add("VGG", lambda: (_vgg(False), image()))
FAMILY.add("VGG with BatchNorm", lambda: (_vgg(True), image()))


class Flattened(nn.Module):
    """Calls `view` on what a convolution and a pooling leave in memory."""

    def __init__(self, space: int):
        super().__init__()
        self.conv: nn.Module = (nn.Conv1d, nn.Conv2d)[space - 1](3, 8, 3, padding=1)
        self.pool: nn.Module = (nn.MaxPool1d, nn.MaxPool2d)[space - 1](2)
        self.hidden, self.head = nn.Linear(8 * 8**space, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.conv(x)))
        return self.head(torch.relu(self.hidden(x.view(x.shape[0], -1))))


FAMILY.add("convolution in time, flattened by view", lambda: (Flattened(1), torch.randn(2, 3, 16)))
FAMILY.add(
    "convolution, each position by itself, flattened by view",
    lambda: (Flattened(2), torch.randn(2, 3, 16, 16)),
    options={"over": "position"},
)
FAMILY.add("VGG, each position by itself", lambda: (_vgg(False), image()), options={"over": "position"})
FAMILY.add(
    "VGG with BatchNorm, each position by itself",
    lambda: (_vgg(True), image()),
    options={"over": "position", "residual": "sum"},
)
FAMILY.add("VGG with BatchNorm kept", lambda: (_vgg(True), image()), options={"batch_norm": "keep"})


class DenseLayer(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(channels), nn.Conv2d(channels, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], dim=1)


@FAMILY.entry("DenseNet")
def _() -> tuple[nn.Module, Tensor]:
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        DenseLayer(8),
        DenseLayer(16),
        nn.Conv2d(24, 12, 1),
        nn.AvgPool2d(2),
    ]
    return nn.Sequential(*layers, nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 64, 5)), image()


class Inception(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.one = nn.Conv2d(channels, 8, 1)
        self.three = nn.Sequential(nn.Conv2d(channels, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(channels, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(torch.cat([self.one(x), self.three(x), self.pooled(x)], 1))


@FAMILY.entry("Inception")
def _() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(
        Inception(3), Inception(24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)
    ), image()


class DoubleConv(nn.Sequential):
    def __init__(self, inside: int, outside: int):
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1),
            nn.ReLU(),
        )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = DoubleConv(3, 8), DoubleConv(8, 16), DoubleConv(16, 32)
        self.lift2, self.lift1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.up2, self.up1, self.head = DoubleConv(32, 16), DoubleConv(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.lift2(self.middle(F.max_pool2d(second, 2)))
        x = self.lift1(self.up2(torch.cat([second, x], dim=1)))
        return self.head(self.up1(torch.cat([first, x], dim=1)))


FAMILY.add("U-Net", lambda: (UNet(), image()))


class Upsampler(nn.Module):
    """Interpolation and pixel shuffle between convolution and activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (
            nn.Conv2d(3, 32, 3, padding=1),
            nn.Conv2d(8, 8, 3),
            nn.Conv2d(8, 3, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(F.pixel_shuffle(self.first(x), 2), 0.2)
        x = F.leaky_relu(F.interpolate(self.second(x), scale_factor=0.5, mode="bilinear"), 0.2)
        return torch.tanh(self.last(x))


FAMILY.add("super-resolution", lambda: (Upsampler(), image(size=8)))
