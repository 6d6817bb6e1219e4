"""Products of two layers' results, from one input or two, that another layer is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("multiplied")
X = torch.linspace(-1, 1, 24).reshape(4, 6).sin()
STREAM = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3))
IMAGE = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(4))
TOKENS = torch.tensor([[1, 4, 2, 7], [3, 3, 5, 6], [0, 8, 2, 1]])


def net(name: str, forward: Callable[..., Any], x: Any = X, **parts: Callable[[], Any]) -> None:
    """Parts are functions, so that each build has weights of its own."""
    FAMILY.add(name, lambda: (Written(forward, **{k: part() for k, part in parts.items()}), x))


def linear(inputs: int, outputs: int, bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(inputs, outputs, bias)


def conv(inputs: int, outputs: int, size: int = 1, groups: int = 1) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups)


def raw(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


def pooled(net, h):
    return net.head(h.mean((2, 3)))


def film(net, x):
    scale, shift = net.film(x).chunk(2, -1)
    return net.head(scale * net.a(x) + shift)


def film_of_one(net, x):
    scale, shift = net.film(x).chunk(2, -1)
    return net.head(F.relu((1 + scale) * net.a(x) + shift))


net("two towers", lambda n, x: n.head(n.a(x) * n.b(x)), a=linear(6, 8), b=linear(6, 8), head=linear(8, 1))
net("two towers, a dot product", lambda n, x: (n.a(x) * n.b(x)).sum(-1), a=linear(6, 8), b=linear(6, 8))
net("film without an activation", film, film=linear(6, 16), a=linear(6, 8), head=linear(8, 2))
net("film, one plus, relu", film_of_one, film=linear(6, 16), a=linear(6, 8), head=linear(8, 2))


def cross(net, tokens):
    start = x = net.embed(tokens).flatten(1)
    for layer in (net.one, net.two):
        x = start * layer(x) + x
    return net.head(x)


def cross_raw(net, tokens):
    start = x = net.embed(tokens).flatten(1)
    for w, b in ((net.w1, net.b1), (net.w2, net.b2)):
        x = start * (x @ w).unsqueeze(-1) + b + x
    return net.head(x)


def cross_low_rank(net, x):
    start = net.first(x)
    return net.head(start * net.up(net.down(start)) + start)


def table():
    return nn.Embedding(9, 4)


net(
    "cross layers on an embedding",
    cross,
    TOKENS,
    embed=table,
    one=linear(16, 16),
    two=linear(16, 16),
    head=linear(16, 1),
)
net(
    "cross layers, raw vectors",
    cross_raw,
    TOKENS,
    embed=table,
    w1=raw(16),
    w2=raw(16),
    b1=raw(16),
    b2=raw(16),
    head=linear(16, 1),
)
net(
    "cross layer of low rank",
    cross_low_rank,
    first=linear(6, 12),
    down=linear(12, 3, False),
    up=linear(3, 12),
    head=linear(12, 1),
)
net(
    "a square through two layers",
    lambda n, x: n.head((h := n.a(x)) * n.c(n.b(h))),
    a=linear(6, 8),
    b=linear(8, 8),
    c=linear(8, 8),
    head=linear(8, 2),
)


def hypernetwork(net, x):
    weight = net.hyper(x).view(-1, 5, 6)
    return net.head(torch.bmm(weight, net.a(x).unsqueeze(-1)).squeeze(-1))


def outer_mean(net, s):
    return net.head(torch.einsum("bic,bjd->bijcd", net.a(s), net.b(s)).flatten(3))


def triangle(net, s):
    return net.head(net.norm(torch.einsum("bic,bjc->bijc", net.a(s), net.b(s))))


net("hypernetwork on a layer", hypernetwork, hyper=linear(6, 30), a=linear(6, 6), head=linear(5, 2))
net("outer product mean", outer_mean, STREAM, a=linear(8, 3), b=linear(8, 3), head=linear(9, 4))
net(
    "triangle multiplication",
    triangle,
    STREAM,
    a=linear(8, 6),
    b=linear(8, 6),
    norm=lambda: nn.LayerNorm(6),
    head=linear(6, 4),
)


def attend_linearly(net, s):
    return net.head(net.q(s) @ (net.k(s).mT @ net.v(s)))


def attend_linearly_normed(net, s):
    return net.head(net.norm(net.q(s) @ (net.k(s).mT @ net.v(s))))


QKV = {"q": linear(8, 8), "k": linear(8, 8), "v": linear(8, 8), "head": linear(8, 2)}
net("linear attention, nothing on q and k", attend_linearly, STREAM, **QKV)
net("linear attention before a norm", attend_linearly_normed, STREAM, norm=lambda: nn.LayerNorm(8), **QKV)


def channel_lambda(net, s):
    q, k, v = net.q(s), net.k(s).softmax(1), net.v(s)
    positions = torch.einsum("nmk,bmv->bnkv", net.e, v)
    return net.head(q @ (k.mT @ v) + torch.einsum("bnk,bnkv->bnv", q, positions))


net("lambda layer", channel_lambda, STREAM, **{**QKV, "q": linear(8, 4), "k": linear(8, 4)}, e=raw(5, 5, 4))
net(
    "star operation",
    lambda n, i: pooled(n, i + n.g(n.a(i) * n.b(i))),
    IMAGE,
    a=conv(8, 16),
    b=conv(8, 16),
    g=conv(16, 8),
    head=linear(8, 2),
)


def recursive_gates(net, i):
    a, rest = net.first(i).split((4, 12), 1)
    b, c = (net.deep(rest) * 0.3).split((4, 8), 1)
    return pooled(net, net.out(net.point(a * b) * c))


def large_kernel(net, i):
    u = net.a(i)
    return pooled(net, net.out(u * net.mix(net.deep(u))))


net(
    "recursive gates",
    recursive_gates,
    IMAGE,
    first=conv(8, 16),
    deep=conv(12, 12, 3, 12),
    point=conv(4, 8),
    out=conv(8, 8),
    head=linear(8, 2),
)
net(
    "large kernel attention without gelu",
    large_kernel,
    IMAGE,
    a=conv(8, 8),
    deep=conv(8, 8, 5, 8),
    mix=conv(8, 8),
    out=conv(8, 8),
    head=linear(8, 2),
)
net(
    "gate of a time step that starts at zero",
    lambda n, i: pooled(n, i + n.gate(F.silu(i.mean((2, 3))))[:, :, None, None] * n.c(F.silu(n.norm(i)))),
    IMAGE,
    gate=linear(8, 8),
    norm=lambda: nn.GroupNorm(2, 8),
    c=conv(8, 8, 3),
    head=linear(8, 2),
)
ABG = {"a": linear(6, 8), "b": linear(6, 8), "g": linear(6, 8), "head": linear(8, 2)}
net("lerp by a sigmoid", lambda n, x: n.head(torch.lerp(n.a(x), n.b(x), n.g(x).sigmoid())), **ABG)
net("lerp by a layer", lambda n, x: n.head(torch.lerp(n.a(x), n.b(x), n.g(x))), **ABG)
net("addcmul of three", lambda n, x: n.head(torch.addcmul(n.a(x), n.b(x), n.g(x))), **ABG)
net("one over one plus a square", lambda n, x: n.head(n.a(x) / (1 + n.b(x) ** 2)), **ABG | {"g": table})


def mixing_network(net, x):
    values = net.q(x).view(-1, 1, 3)
    hidden = F.elu(values @ net.w1(x).abs().view(-1, 3, 5) + net.b1(x).unsqueeze(1))
    return hidden @ net.w2(x).abs().view(-1, 5, 1) + net.b2(x).unsqueeze(1)


def normalised_advantage(net, x):
    h = F.relu(net.a(x))
    lower = net.lower(h).view(-1, 2, 2)
    lower = lower.tril(-1) + torch.diag_embed(lower.diagonal(dim1=1, dim2=2).exp())
    gap = (torch.full((len(x), 2), 0.3).to(x) - net.mean(h).tanh()).unsqueeze(1)
    return net.value(h) - 0.5 * (gap @ lower @ lower.mT @ gap.mT).squeeze(-1)


net(
    "qmix",
    mixing_network,
    q=lambda: mlp(6, 8, 3),
    w1=linear(6, 15),
    b1=linear(6, 5),
    w2=linear(6, 5),
    b2=lambda: mlp(6, 5, 1),
)
net(
    "normalised advantage function",
    normalised_advantage,
    a=linear(6, 8),
    mean=linear(8, 2),
    lower=linear(8, 4),
    value=linear(8, 1),
)
net(
    "spatial gating with tiny attention",
    lambda n, s: (
        s + n.out((uv := F.gelu(n.up(n.norm(s))).chunk(2, -1))[0] * (n.space(uv[1].mT).mT + n.side(s)))
    ),
    STREAM,
    norm=lambda: nn.LayerNorm(8),
    up=linear(8, 16),
    space=linear(5, 5),
    side=linear(8, 8),
    out=linear(8, 8),
)
