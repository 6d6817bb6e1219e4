"""Layers as libraries write them that the project had not met: quaternions, wired cells."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .built import ROWS, SERIES
from .entry import Family
from .written import Written

FAMILY = Family("libraries")


class Quaternion(nn.Module):
    """Counts quaternions, not numbers, in `out_features`."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.r, self.i, self.j, self.k = (nn.Parameter(torch.randn(outputs, inputs) / 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        r, i, j, k = self.r, self.i, self.j, self.k
        rows = [[r, -i, -j, -k], [i, r, -k, j], [j, k, r, -i], [k, -j, i, r]]
        return F.linear(x, torch.cat([torch.cat(row, 1) for row in rows]))


@FAMILY.entry("quaternions")
def quaternions():
    layers = nn.Sequential(Quaternion(2, 3), nn.ReLU(), Quaternion(3, 2), nn.Tanh(), nn.Linear(8, 2))
    return layers, SERIES


@FAMILY.entry("wired cell whose last step is the output")
def wired_cell():
    def forward(net, x):
        h = torch.zeros(len(x), 4)
        for _ in range(3):
            both = torch.cat([x, h], -1)
            a = torch.tanh(F.linear(both, net.a.weight * net.mask, net.a.bias))
            b = torch.tanh(F.linear(both, net.b.weight * net.mask, net.b.bias))
            t = torch.sigmoid(net.time(both))
            h = a * (1 - t) + t * b
        return h

    mask = nn.Parameter((torch.rand(4, 10) > 0.3).float(), requires_grad=False)
    return Written(forward, a=nn.Linear(10, 4), b=nn.Linear(10, 4), time=nn.Linear(10, 4), mask=mask), ROWS


@FAMILY.entry("a part of what a layer makes enters it again")
def again():
    def forward(net, x):
        for _ in range(2):
            value, gate = net.both(x).chunk(2, -1)
            x = x + net.out(value * gate.sigmoid())
        return net.head(net.last(x).relu())

    both, out = nn.Linear(6, 12, bias=False), nn.Linear(6, 6, bias=False)
    return Written(forward, both=both, out=out, last=nn.Linear(6, 6), head=nn.Linear(6, 2)), ROWS


class Interaction(nn.Module):
    """Two tables that are multiplied, in a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Embedding(5, 4), nn.Embedding(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x[:, :1]) * self.b(x[:, 1:])


@FAMILY.entry("keys that two windows see, rotated by their place in each")
def windows():
    def forward(net, x):
        q, k, v = net.qkv(x).chunk(3, -1)
        seen = torch.stack([k, F.pad(k, (0, 0, 1, -1))], 1)  # batch, window, time, features
        a, b = seen.chunk(2, -1)
        angle = torch.tensor([0.3, 1.1])[:, None, None] * torch.arange(1.0, 5.0)
        turned = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
        logits = torch.einsum("btd,bwsd->btws", q, turned).flatten(2)
        return net.head(logits.softmax(-1) @ torch.stack([v, v], 1).flatten(1, 2))

    return Written(forward, qkv=nn.Linear(8, 24), head=nn.Linear(8, 2)), SERIES


class Sparse(torch.autograd.Function):
    """A softmax that writes its own gradient, as DeBERTa does for masks."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return y * (gradient - (gradient * y).sum(-1, keepdim=True))


@FAMILY.entry("a softmax with a gradient of its own")
def own_softmax():
    def forward(net, x):
        q, k, v = (net.qkv(net.norm(x)).unflatten(-1, (3, 2, 4)).movedim(-3, 0)).transpose(2, 3)
        mixed = Sparse.apply(q @ k.mT / 2) @ v
        return net.head(x + net.out(mixed.transpose(1, 2).flatten(2)))

    parts = {
        "norm": nn.LayerNorm(8),
        "qkv": nn.Linear(8, 24),
        "out": nn.Linear(8, 8),
        "head": nn.Linear(8, 2),
    }
    return Written(forward, **parts), SERIES


@FAMILY.entry("interactions of fields, each a module")
def interactions():
    def forward(net, x):
        return net.head(net.layer(torch.cat([part(x) for part in net.parts], -1).flatten(1)).relu())

    parts = nn.ModuleList(Interaction() for _ in range(2))
    return Written(forward, parts=parts, layer=nn.Linear(8, 8), head=nn.Linear(8, 2)), torch.randint(
        5, (4, 2)
    )
