"""Multilayer perceptrons: every activation as module and as function; some normalised already."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Family

FAMILY = Family("mlp")
WIDTH = 32


def _inputs() -> Tensor:
    return torch.randn(2, 12)


def _module_mlp(activation: Callable[[], nn.Module]) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(12, WIDTH), activation(), nn.Linear(WIDTH, WIDTH), activation(), nn.Linear(WIDTH, 5)
    )


class FunctionalMLP(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.first, self.second = nn.Linear(12, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 5)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.second(self.activation(self.first(x)))))


def swish_by_hand(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def clamp_below(x: Tensor) -> Tensor:
    return torch.clamp(x, min=0)


def relu_in_place(x: Tensor) -> Tensor:
    return F.relu(x, inplace=True)


def relu_squared(x: Tensor) -> Tensor:
    return F.relu(x) ** 2


MODULES: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.SELU, nn.Softplus, nn.Mish,
    nn.Hardswish, nn.ReLU6, nn.PReLU, nn.CELU, nn.Hardtanh, nn.LogSigmoid,
)  # fmt: skip
FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu, torch.relu, F.gelu, F.silu, torch.tanh, torch.sigmoid, F.leaky_relu, F.elu, F.selu, F.softplus,
    F.mish, F.hardswish, F.relu6, Tensor.relu, Tensor.relu_, Tensor.sigmoid, swish_by_hand, clamp_below,
    relu_in_place, relu_squared, torch.sin,
)  # fmt: skip


def _with_module(activation: type[nn.Module]) -> tuple[nn.Module, Tensor]:
    return _module_mlp(activation), _inputs()


def _with_function(activation: Callable[[Tensor], Tensor]) -> tuple[nn.Module, Tensor]:
    return FunctionalMLP(activation), _inputs()


for module in MODULES:
    FAMILY.add(f"mlp module {module.__name__}", partial(_with_module, module))
for number, function in enumerate(FUNCTIONS):
    FAMILY.add(f"mlp function {number} {function.__name__}", partial(_with_function, function))


@FAMILY.entry("mlp inplace module")
def _() -> tuple[nn.Module, Tensor]:
    return _module_mlp(lambda: nn.ReLU(inplace=True)), _inputs()


@FAMILY.entry("mlp without bias")
def _() -> tuple[nn.Module, Tensor]:
    layers = [nn.Linear(12, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 5, bias=False)), _inputs()


@FAMILY.entry("mlp with LayerNorm before each activation")
def _() -> tuple[nn.Module, Tensor]:
    layers: list[nn.Module] = [nn.Linear(12, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()]
    layers += [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5)]
    return nn.Sequential(*layers), _inputs()


@FAMILY.entry("mlp with LayerNorm after each activation")
def _() -> tuple[nn.Module, Tensor]:
    layers: list[nn.Module] = [nn.Linear(12, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH)]
    layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)]
    return nn.Sequential(*layers), _inputs()


@FAMILY.entry("mlp with nn.RMSNorm")
def _() -> tuple[nn.Module, Tensor]:
    layers: list[nn.Module] = [nn.Linear(12, WIDTH), nn.RMSNorm(WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 5)), _inputs()


class RMSNorm(nn.Module):
    """As language models write it."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class InlineRMS(nn.Module):
    """A norm written into the forward, and one as a module of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Linear(12, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.norm, self.head = RMSNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = F.relu(x / x.pow(2).mean(-1, keepdim=True).add(1e-8).sqrt())
        x = torch.tanh(self.norm(self.second(x)))
        return self.head(F.relu(self.third(x)))


FAMILY.add("mlp with RMS inline and as own module", lambda: (InlineRMS(), _inputs()))


class FunctionalLayerNorm(InlineRMS):
    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.layer_norm(self.first(x), (WIDTH,)))
        x = F.relu(F.normalize(self.second(x), dim=-1))
        return self.head(F.relu(self.norm(self.third(x))))


FAMILY.add("mlp with F.layer_norm and F.normalize", lambda: (FunctionalLayerNorm(), _inputs()))


class ResidualMLP(nn.Module):
    """A stream that nothing normalises."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, WIDTH)
        self.up = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(F.relu(up(x)))
        return self.head(x)


class PreActivationMLP(ResidualMLP):
    """Activations act on the stream itself, so each branch that is summed in needs its norm."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(F.relu(up(F.relu(x))))
        return self.head(F.relu(x))


FAMILY.add("mlp residual", lambda: (ResidualMLP(), _inputs()))
FAMILY.add("mlp residual, activation on the stream", lambda: (PreActivationMLP(), _inputs()))
FAMILY.add("mlp relu output", lambda: (_module_mlp(nn.ReLU).append(nn.ReLU()), _inputs()))
FAMILY.add("mlp sigmoid output", lambda: (_module_mlp(nn.Tanh).append(nn.Sigmoid()), _inputs()))
FAMILY.add("mlp softmax output", lambda: (_module_mlp(nn.ReLU).append(nn.Softmax(-1)), _inputs()))
FAMILY.add(
    "mlp linear chain",
    lambda: (nn.Sequential(nn.Linear(12, 8), nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5)), _inputs()),
)
FAMILY.add(
    "mlp BatchNorm1d",
    lambda: (
        nn.Sequential(nn.Linear(12, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5)),
        _inputs(),
    ),
)
