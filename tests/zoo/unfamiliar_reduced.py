"""Products with vectors, reductions over graphs, guards and odd activations; blocks of public libraries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("reduced")
X = torch.linspace(-1, 1, 24).reshape(4, 6).sin()
STREAM = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3))
IMAGE = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(4))
NODES = torch.randn(5, 6, generator=torch.Generator().manual_seed(5))
PLACES = torch.randn(5, 3, generator=torch.Generator().manual_seed(6))
SOURCE, TARGET = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 0, 2, 0]])
INTO = TARGET.unsqueeze(-1).expand(-1, 8)
TIMES = torch.tensor([3, 7])


def net(name: str, forward: Callable[..., Any], x: Any = X, refusal: str | None = None, **parts: Any) -> None:
    def build():
        made = {k: part() for k, part in parts.items()}
        return Written(forward, **made), x

    FAMILY.add(name, build, refusal=refusal)


def linear(inputs: int, outputs: int, bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(inputs, outputs, bias)


def conv(inputs: int, outputs: int, size: int = 1, groups: int = 1) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups)


def raw(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


def hidden(name: str, bend: Callable[..., Any], refusal: str | None = None, **parts: Any) -> None:
    """Something that is done with a layer's result before the next layer."""
    parts = {"a": linear(6, 8), "head": linear(8, 2)} | parts
    net(
        name,
        lambda n, x: n.head(bend(n, n.a(x)) if parts.keys() - {"a", "head"} else bend(n.a(x))),
        X,
        refusal,
        **parts,
    )


# what has one number for each input, and no features
HEAD: dict[str, Any] = {"head": linear(6, 2)}
VECTOR: dict[str, Any] = {"w": raw(6), "head": linear(1, 2)}
net("vector, matmul", lambda n, x: n.head((x @ n.w).relu().unsqueeze(-1)), **VECTOR)
net("vector, mv", lambda n, x: n.head(torch.mv(x, n.w).relu().unsqueeze(-1)), **VECTOR)
net("vector, linear", lambda n, x: n.head(F.linear(x, n.w).relu().unsqueeze(-1)), **VECTOR)
net("vector, einsum", lambda n, x: n.head(torch.einsum("bi,i->b", x, n.w).relu().unsqueeze(-1)), **VECTOR)
net("vector, tensordot", lambda n, x: n.head(torch.tensordot(x, n.w, 1).relu().unsqueeze(-1)), **VECTOR)
net(
    "planar flow on a layer",
    lambda n, x: n.head((z := n.a(x)) + n.u * (z @ n.w).tanh().unsqueeze(-1)),
    a=linear(6, 6),
    u=raw(6),
    w=raw(6),
    **HEAD,
)
net(
    "a matrix times each sample, mv",
    lambda n, x: n.head(torch.stack([torch.mv(n.w, r) for r in x]).relu()),
    w=raw(6, 6),
    **HEAD,
)
net(
    "a matrix times each sample, addmv",
    lambda n, x: n.head(torch.stack([torch.addmv(n.b, n.w, r) for r in x]).relu()),
    w=raw(6, 6),
    b=raw(6),
    **HEAD,
)
net(
    "heads with a vector each, einsum",
    lambda n, s: n.head(
        torch.einsum("bnhd,hd->bhn", n.a(s).unflatten(-1, (2, 4)), n.w).softmax(-1) @ s
    ).flatten(1),
    STREAM,
    a=linear(8, 8),
    w=raw(2, 4),
    head=linear(8, 2),
)

# reductions over the edges of a graph
M: dict[str, Any] = {"m": linear(6, 8), "head": linear(8, 2)}
net(
    "messages, scatter amax",
    lambda n, x: n.head(
        torch.zeros(5, 8).to(x).scatter_reduce(0, INTO, n.m(x)[SOURCE], "amax", include_self=False)
    ),
    NODES,
    **M,
)
net(
    "messages, index_reduce amax",
    lambda n, x: n.head(torch.full((5, 8), -1e9).to(x).index_reduce(0, TARGET, n.m(x)[SOURCE], "amax")),
    NODES,
    **M,
)


def principal(net, x):
    m, z = net.m(x)[SOURCE], torch.zeros(5, 8).to(x)
    mean, most, least, square = (
        z.scatter_reduce(0, INTO, v, how, include_self=False)
        for v, how in ((m, "mean"), (m, "amax"), (m, "amin"), (m * m, "mean"))
    )
    return net.head(torch.cat([mean, most, least, ((square - mean * mean).relu() + 1e-5).sqrt()], -1))


def two_equivariant_rounds(net, x, places):
    for _ in range(2):
        away = places[SOURCE] - places[TARGET]
        m = F.silu(net.edge(torch.cat([x[SOURCE], x[TARGET], away.square().sum(-1, keepdim=True)], -1)))
        places = places + torch.zeros_like(places).index_add(0, TARGET, away * net.move(m))
        x = x + net.node(torch.cat([x, torch.zeros(5, 8).to(x).index_add(0, TARGET, m)], -1))
    return x, places


net("principal neighbourhood aggregation", principal, NODES, m=linear(6, 8), head=linear(32, 2))
net(
    "two equivariant rounds",
    two_equivariant_rounds,
    (NODES, PLACES),
    edge=linear(13, 8),
    move=linear(8, 1),
    node=linear(14, 6),
)

# guards and odd activations
hidden("clamp at a small number", lambda h: h.clamp(min=1e-6))
hidden("clamp_min at a small number", lambda h: h.clamp_min(1e-3))
hidden("clamp of a norm", lambda h: h / h.norm(dim=-1, keepdim=True).clamp(min=1e-6))
hidden("a learned minimum", lambda n, h: torch.minimum(h, n.t), t=raw(8))
hidden("mask of detached signs", lambda h: h.masked_fill(h.detach() < 0, 0.0))
hidden("snake", lambda n, h: h + (n.t * h).sin() ** 2 / (n.t.abs() + 1e-3), t=raw(8))
hidden("rational", lambda n, h: (n.t[0] + n.t[1] * h + n.t[2] * h**2) / (1 + (n.t[3] * h).abs()), t=raw(4))
hidden(
    "polynomial with learned coefficients", lambda n, h: ((n.t[2] * h + n.t[1]) * h + n.t[0]) * h, t=raw(3)
)
hidden(
    "scaled to [0, 1]",
    lambda h: (h - h.amin(-1, keepdim=True)) / (h.amax(-1, keepdim=True) - h.amin(-1, keepdim=True) + 1e-5),
)
hidden("groups of softmax", lambda h: h.unflatten(-1, (2, 4)).softmax(-1).flatten(-2))
hidden("noise on an argmax", lambda h: F.gumbel_softmax(h, hard=True))
hidden(
    "Chebyshev",
    lambda n, h: torch.einsum(
        "bik,oik->bo", torch.cos(torch.arange(4).to(h) * torch.acos(h.tanh().unsqueeze(-1) * 0.99)), n.t
    ),
    t=raw(8, 8, 4),
)
hidden("log of cumulated exponentials", lambda h: h.logcumsumexp(-1))
hidden("a step and its angle", lambda h: torch.fft.fft(h).angle(), refusal="angle")
hidden(
    "singular values",
    lambda h: torch.linalg.svdvals(h.unflatten(-1, (4, 2))) @ torch.ones(2, 8).to(h),
    refusal="svdvals",
)
hidden(
    "derivative along a direction",
    lambda n, h: torch.func.jvp(lambda z: n.inner(z).tanh(), (h,), (torch.ones_like(h),))[1],
    refusal="takes derivatives",
    inner=linear(8, 8),
)
hidden(
    "gradient of an energy",
    lambda n, h: torch.vmap(torch.func.grad(lambda z: n.inner(z).tanh().sum()))(h),
    refusal="takes derivatives",
    inner=linear(8, 8),
)


# blocks as public libraries write them
def waves(t, width=8):
    angle = t[:, None].float() * torch.exp(-math.log(1e4) * torch.arange(width // 2).float() / (width // 2))
    return torch.cat([angle.sin(), angle.cos()], -1)


def diffusion_transformer(net, s, t):
    c = F.silu(net.t2(F.silu(net.t1(waves(t).to(s)))))
    a, b, gate, d, e, last = net.ada(c).unsqueeze(1).chunk(6, -1)
    s = s + gate * net.out(F.scaled_dot_product_attention(*net.qkv(net.norm(s) * (1 + a) + b).chunk(3, -1)))
    s = s + last * net.mlp(net.norm(s) * (1 + d) + e)
    scale, shift = net.end(c).unsqueeze(1).chunk(2, -1)
    return net.head(net.norm(s) * (1 + scale) + shift)


def unet_block(net, i, t):
    scale, shift = net.t2(F.silu(net.t1(waves(t).to(i))))[:, :, None, None].chunk(2, 1)
    h = net.norm2(net.c1(F.silu(net.norm1(i)))) * (1 + scale) + shift
    return net.head(i + net.c2(F.silu(h)))


def modulated_convolution(net, i):
    w = net.w * net.style(i.mean((2, 3))).view(2, 1, 8, 1, 1)
    w = (w * torch.rsqrt(w.square().sum((2, 3, 4), keepdim=True) + 1e-8)).view(16, 8, 3, 3)
    h = F.conv2d(i.reshape(1, 16, 6, 6), w, padding=1, groups=2)
    return net.head(F.leaky_relu(h.view(2, 8, 6, 6), 0.2))


def response_normalised(net, i):
    h = net.up(i.permute(0, 2, 3, 1))
    size = h.norm(dim=(1, 2), keepdim=True)
    return net.head((h * (size / (size.mean(-1, keepdim=True) + 1e-6)) + h).mean((1, 2)))


def efficient_channels(net, i):
    gate = net.k(i.mean((2, 3)).unsqueeze(1)).sigmoid().transpose(1, 2).unsqueeze(-1)
    return net.head((F.relu(net.c(i)) * gate).mean((2, 3)))


def world_model(net, x):
    h, z, seen = torch.zeros(4, 8).to(x), torch.zeros(4, 6).to(x), F.elu(net.enc(x))
    for _ in range(2):
        h = torch.tanh(net.h(torch.cat([h, F.elu(net.i(z))], -1)))
        p = 0.99 * net.post(torch.cat([h, seen], -1)).view(4, 2, 3).softmax(-1) + 0.01 / 3
        z = (F.one_hot(p.argmax(-1), 3).to(x) + p - p.detach()).flatten(1)
    return net.head(torch.cat([h, z], -1))


DIT: dict[str, Any] = {
    "t1": linear(8, 8),
    "t2": linear(8, 8),
    "ada": linear(8, 48),
    "qkv": linear(8, 24),
    "out": linear(8, 8),
}
net(
    "diffusion transformer",
    diffusion_transformer,
    (STREAM, TIMES),
    **DIT,
    norm=lambda: nn.LayerNorm(8, elementwise_affine=False),
    mlp=lambda: mlp(8, 16, 8, nn.GELU),
    end=linear(8, 16),
    head=linear(8, 4),
)
net(
    "residual block of a U-Net",
    unet_block,
    (IMAGE, TIMES),
    t1=linear(8, 16),
    t2=linear(16, 16),
    norm1=lambda: nn.GroupNorm(2, 8),
    norm2=lambda: nn.GroupNorm(2, 8),
    c1=conv(8, 8, 3),
    c2=conv(8, 8, 3),
    head=conv(8, 3),
)
net(
    "modulated convolution",
    modulated_convolution,
    IMAGE,
    w=raw(1, 8, 8, 3, 3),
    style=linear(8, 8),
    head=conv(8, 3),
)
net(
    "global response normalisation of a layer",
    response_normalised,
    IMAGE,
    up=linear(8, 16),
    head=linear(16, 2),
)
net(
    "efficient channel attention",
    efficient_channels,
    IMAGE,
    c=conv(8, 8, 3),
    k=lambda: nn.Conv1d(1, 1, 3, padding=1),
    head=linear(8, 2),
)
net(
    "world model of categories",
    world_model,
    enc=linear(6, 8),
    h=linear(16, 8),
    i=linear(6, 8),
    post=linear(16, 6),
    head=linear(14, 3),
)
