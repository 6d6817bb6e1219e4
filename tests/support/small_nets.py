"""Small nets that the tests convert, each with a maker of inputs for any batch size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(11, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm, self.up, self.down, self.head = (
            nn.LayerNorm(16),
            nn.Linear(16, 32),
            nn.Linear(32, 16),
            nn.Linear(16, 11),
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return self.head(x + self.down(F.gelu(self.up(self.norm(x)))))


class NoBias(nn.Module):
    """Nothing but the hook tells its layers from those of a converted one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))


def convnet() -> nn.Module:
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()]
    return nn.Sequential(*body, nn.Flatten(1), nn.Linear(128, 3))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def parametrised() -> nn.Module:
    first = nn.utils.parametrizations.weight_norm(nn.Linear(8, 16))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(16, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "mlp": (mlp, lambda n: torch.randn(n, 8)),
    "conv and BatchNorm": (convnet, lambda n: torch.randn(n, 3, 8, 8)),
    "decoder": (Decoder, lambda n: torch.randint(11, (n, 5))),
    "nn.TransformerEncoder": (encoder, lambda n: torch.randn(n, 5, 16)),
    "weight_norm": (parametrised, lambda n: torch.randn(n, 8)),
}
every_net = pytest.mark.parametrize(("build", "inputs"), NETS.values(), ids=NETS.keys())
