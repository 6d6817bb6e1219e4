"""How long planning takes on nets of real size, beside one plain forward of the same net.

    python benchmarks/planning.py --repeats 3

A plan runs the model a few times (before and after conversion, on a copy). Of large models the products
with weights are left out, unless their values are needed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap


class ResidualBlock(nn.Module):
    def __init__(self, width_in: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.skip: nn.Module = nn.Identity()
        if stride > 1:
            self.skip = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.skip(x) + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def resnet_18() -> tuple[nn.Module, Tensor]:
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = [(64, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512)]
    blocks = [ResidualBlock(a, b, 1 if a == b else 2) for a, b in widths]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*stem, *blocks, *head), torch.randn(2, 3, 224, 224)


class Block(nn.Module):
    """A pre-norm transformer block with a fused projection."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 384, depth: int = 12, heads: int = 6):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 197, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class LanguageModel(nn.Module):
    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12, vocabulary: int = 50257):
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


NETS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "ResNet-18": resnet_18,
    "ViT-S/16": lambda: (VisionTransformer(), torch.randn(2, 3, 224, 224)),
    "GPT-2 small": lambda: (LanguageModel(), torch.randint(50257, (2, 64))),
    "GPT 1.1B": lambda: (LanguageModel(2048, 20, 32, 32000), torch.randint(32000, (2, 64))),
}


def seconds(act: Callable[[], object], repeats: int) -> float:
    """The median time of one call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    args = parser.parse_args()
    print(f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print(f"{'net':12}  {'parameters':>10}  {'norms':>5}  {'forward s':>9}  {'plan s':>7}  {'apply s':>7}")
    for name in args.nets:
        model, x = NETS[name]()
        model.eval()
        with torch.no_grad():
            forward = seconds(partial(model, x), args.repeats)
        planning = seconds(partial(nap.plan, model, x), args.repeats)
        plan = nap.plan(model, x)
        applying = seconds(partial(nap.normalize_, model, plan), 1)
        size = f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M"
        norms = len(plan.placements)
        print(f"{name:12}  {size:>10}  {norms:5}  {forward:9.2f}  {planning:7.2f}  {applying:7.3f}")


if __name__ == "__main__":
    main()
