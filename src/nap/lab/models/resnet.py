"""ResNet v2: blocks with pre-activation (He et al., 2016b)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nap.lab.models.presets import RESNET50

EXPANSION = 4  # output channels of a block per channel of its 3×3 convolution


class Block(nn.Module):
    """A bottleneck block: 1×1, 3×3 and 1×1 convolutions, each after BatchNorm and ReLU, and the shortcut."""

    def __init__(self, inputs: int, planes: int, stride: int):
        super().__init__()
        outputs = EXPANSION * planes
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(width) for width in (inputs, planes, planes))
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(planes, outputs, 1, bias=False)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(x))
        x = x if self.shortcut is None else self.shortcut(y)
        y = self.conv2(self.relu(self.norm2(self.conv1(y))))
        return x + self.conv3(self.relu(self.norm3(y)))


class ResNetV2(nn.Module):
    """Images (B, channels, H, W) → logits (B, classes). `small_stem` keeps the size of the image.

    >>> sum(p.numel() for p in ResNetV2(3, 1000).parameters())
    25549352
    >>> ResNetV2(3, 10, blocks=(1, 1), width=8, small_stem=True)(torch.zeros(2, 3, 16, 16)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        blocks: Sequence[int] = RESNET50,
        width: int = 64,
        small_stem: bool = False,
    ):
        super().__init__()
        kernel, stride = (3, 1) if small_stem else (7, 2)
        self.stem = nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False)
        self.pool = nn.Identity() if small_stem else nn.MaxPool2d(3, 2, 1)
        layers: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            planes = width * 2**stage
            for number in range(count):
                layers.append(Block(inputs, planes, 2 if stage > 0 and number == 0 else 1))
                inputs = EXPANSION * planes
        self.blocks = nn.Sequential(*layers)
        self.norm, self.relu = nn.BatchNorm2d(inputs), nn.ReLU()
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        # logits of unit size: a projected head keeps the norm that it starts with, so it must not start small
        nn.init.normal_(self.head.weight, std=inputs**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.pool(self.stem(images)))
        return self.head(torch.mean(self.relu(self.norm(x)), (2, 3)))
