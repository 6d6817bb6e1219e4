"""Networks that are hard to convert, and such that must be refused, with the offender named."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Family
from .sequence import Recurrent, tokens

FAMILY = Family("refused")


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)


class BorrowedWeight(Base):
    """Applies another module's weight by hand, so no module produces what the ReLU gets."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(F.linear(F.relu(self.embed(x)), self.inner.weight)))


class RawEinsum(Base):
    """Two products and the ReLU between them in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(16, 24) / 4), nn.Parameter(torch.randn(24, 16) / 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.embed(x))
        return self.head(torch.einsum("bh,hd->bd", F.relu(torch.einsum("bd,dh->bh", x, self.up)), self.down))


class DirectForward(Base):
    """Calls forward itself, which runs no hooks."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.inner.forward(F.relu(self.embed(x)))))


class ScalarGate(Base):
    """A gate of width one: every norm of one number is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.embed(x))
        return self.head(x * torch.sigmoid(self.gate(x)))


class HiddenAndOutput(Base):
    """The same head makes the output and feeds a nonlinearity."""

    def forward(self, x: Tensor) -> Tensor:
        first = self.inner(F.relu(self.embed(x)))
        return self.inner(F.relu(self.head(F.relu(first))))


class AlsoReturned(Base):
    """What the ReLU gets is returned too, un-normalised."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.embed(x)
        return self.head(F.relu(hidden)), hidden


def _x() -> Tensor:
    return torch.randn(2, 8)


def _zero() -> nn.Module:
    first = nn.Linear(8, 16)
    nn.init.zeros_(first.weight)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(16, 3))


def _script() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))


FAMILY.add("functional use of another module's weight", lambda: (BorrowedWeight(), _x()))
FAMILY.add("raw einsum on parameters", lambda: (RawEinsum(), _x()))
FAMILY.add("forward called directly", lambda: (DirectForward(), _x()))
FAMILY.add("gate of width one", lambda: (ScalarGate(), _x()))
FAMILY.add("layer both hidden and output", lambda: (HiddenAndOutput(), _x()), refusal=r"inner")
FAMILY.add("hidden value also returned", lambda: (AlsoReturned(), _x()), refusal=r"embed")
FAMILY.add("LSTM without a choice", lambda: (Recurrent(nn.LSTM), tokens()), refusal=r"rnn")
FAMILY.add("zero weight", lambda: (_zero(), _x()))
FAMILY.add("ScriptModule", lambda: (_script(), _x()), refusal=r"[Ss]cript")
