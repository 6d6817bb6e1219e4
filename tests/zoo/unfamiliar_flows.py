"""Graphs, flows, operators on functions, images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .built import IMAGES, SERIES, entries, linear, matrix, perceptron, vector
from .entry import Family

FAMILY = Family("graphs and flows")
net = entries(FAMILY)
NODES = torch.randn(5, 6, generator=torch.Generator().manual_seed(4))
EDGES = torch.cartesian_prod(torch.arange(5), torch.arange(5)).T
GX = (NODES, EDGES)


def sc(v, i, how="sum", n=5):
    i = i.view(-1, *[1] * (v.ndim - 1)).expand_as(v)
    return torch.zeros(n, *v.shape[1:]).scatter_reduce(0, i, v, how, include_self=False)


@net("gin with learnt eps", GX, eps=vector(1), m=perceptron(6, 8, 8), out=linear(8, 2))
def _(n, x, e):
    return n.out(F.relu(n.m((1 + n.eps) * x + sc(x[e[0]], e[1]))))


@net(
    "graphsage, max of activated neighbours",
    GX,
    pool=linear(6, 8),
    a=linear(6, 8),
    b=linear(8, 8, False),
    out=linear(8, 2),
)
def _(n, x, e):
    h = sc(F.relu(n.pool(x))[e[0]], e[1], "amax")
    return n.out(F.normalize(F.relu(n.a(x) + n.b(h)), dim=-1))


@net(
    "gatv1 written as a sum of (a*h)", GX, w=linear(6, 8, False), al=vector(8), ar=vector(8), out=linear(8, 2)
)
def _(n, x, e):
    h = n.w(x)
    s = F.leaky_relu((h * n.al).sum(-1)[e[0]] + (h * n.ar).sum(-1)[e[1]])
    a = (s - s.max()).exp()
    a = a / sc(a, e[1])[e[1]]
    return n.out(F.elu(sc(a[:, None] * h[e[0]], e[1])))


@net("appnp", GX, m=perceptron(6, 8, 2))
def _(n, x, e):
    h = n.m(x)
    z = h
    for _ in range(3):
        z = 0.9 * sc(z[e[0]], e[1], "mean") + 0.1 * h
    return z.log_softmax(-1)


@net("chebyshev polynomials", GX, w=matrix(3, 6, 8), b=vector(8), out=linear(8, 2))
def _(n, x, e):
    lap = torch.eye(5) * 0.2 - 0.1
    t = [x, lap @ x]
    t.append(2 * lap @ t[1] - t[0])
    return n.out(F.relu(sum(a @ b for a, b in zip(t, n.w, strict=True)) + n.b))


@net("jumping knowledge by max", GX, a=linear(6, 8), b=linear(8, 8), out=linear(8, 2))
def _(n, x, e):
    h1 = F.relu(n.a(sc(x[e[0]], e[1])))
    h2 = F.relu(n.b(sc(h1[e[0]], e[1])))
    return n.out(torch.stack([h1, h2]).max(0).values)


@net(
    "schnet block",
    (NODES[:, :3], EDGES),
    emb=linear(3, 8),
    f=perceptron(4, 8, 8),
    lin=linear(8, 8, False),
    l2=linear(8, 8),
    out=linear(8, 1),
)
def _(n, x, e):
    d = (x[e[0]] - x[e[1]]).norm(dim=-1, keepdim=True)
    rbf = torch.exp(-((d - torch.linspace(0, 2, 4)) ** 2))
    w = n.f(rbf) * 0.5 * ((d * 3.14 / 4).cos() + 1)
    h = n.emb(x)
    h = h + n.l2(F.softplus(sc(n.lin(h)[e[0]] * w, e[1])) - math.log(2))
    return n.out(h).sum(0)


@net(
    "tensor field layer, scalars gate vectors",
    (NODES[:, :3], EDGES),
    s=linear(3, 8),
    r=perceptron(1, 8, 16),
    mv=matrix(8, 4),
    ms=linear(8, 8),
    g=linear(8, 4),
    out=linear(8, 1),
)
def _(n, x, e):
    d = x[e[0]] - x[e[1]]
    rr = d.norm(dim=-1, keepdim=True)
    y = d / (rr + 1e-6)
    h = n.s(x)
    a, b = n.r(rr).chunk(2, -1)
    v = sc((h[e[0]] * a)[:, :, None] * y[:, None], e[1])
    v = torch.einsum("ncx,cd->ndx", v, n.mv)
    s = sc(h[e[0]] * b, e[1])
    v = v * n.g(F.silu(s)).sigmoid()[..., None]
    return n.out(F.silu(n.ms(s))), v


@net(
    "painn update, norms of mixed vectors",
    (NODES, torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(5))),
    U=linear(4, 4, False),
    V=linear(4, 4, False),
    m=perceptron(10, 8, 6),
    out=linear(2, 1),
)
def _(n, s, v):
    u, w = n.U(v.mT).mT, n.V(v.mT).mT
    a = n.m(torch.cat([s, w.norm(dim=-1)], -1))
    x, y, z = a.split(2, -1)
    return n.out(x + y * (u * w).sum(-1)[:, :2]), u * z.repeat(1, 2)[..., None]


@net("graph u-net gating", GX, p=matrix(6), a=linear(6, 8), out=linear(8, 2))
def _(n, x, e):
    s = (x @ n.p) / n.p.norm()
    v, i = s.topk(3)
    h = F.relu(n.a(x[i] * v.sigmoid()[:, None]))
    return n.out(torch.zeros(5, 8).index_copy(0, i, h))


@net("set2set readout", GX, lstm=lambda: nn.LSTMCell(12, 6), out=linear(12, 2), rnn="layernorm")
def _(n, x, e):
    q = torch.zeros(1, 12)
    s = (torch.zeros(1, 6), torch.zeros(1, 6))
    for _ in range(2):
        s = n.lstm(q, s)
        a = (x @ s[0].T).softmax(0)
        q = torch.cat([s[0], (a * x).sum(0, keepdim=True)], -1)
    return n.out(q)


@net(
    "transformer-m of graphs, degree and path biases",
    GX,
    deg=lambda: nn.Embedding(9, 6),
    sp=lambda: nn.Embedding(5, 1),
    qkv=linear(6, 18),
    o=linear(6, 6),
    out=linear(6, 2),
)
def _(n, x, e):
    x = x + n.deg(torch.tensor([1, 2, 3, 1, 2]))
    q, k, v = n.qkv(x).chunk(3, -1)
    b = n.sp((torch.arange(5)[:, None] - torch.arange(5)).abs())[..., 0]
    return n.out(x + n.o((q @ k.T / 6**0.5 + b).softmax(-1) @ v))


# flows


@net("affine coupling, tanh scale", st=perceptron(3, 8, 6), st2=perceptron(3, 8, 6))
def _(n, x):
    a, b = x.chunk(2, -1)
    ld = torch.zeros(())
    for f in (n.st, n.st2):
        s, t = f(a).chunk(2, -1)
        s = torch.tanh(s)
        b = b * s.exp() + t
        ld = ld + s.sum(-1)
        a, b = b, a
    return torch.cat([a, b], -1), ld


@net(
    "planar flow with constraint",
    u=matrix(6),
    w=matrix(6),
    b=vector(1),
    u2=matrix(6),
    w2=matrix(6),
    head=linear(6, 2),
)
def _(n, x):
    for u, w in ((n.u, n.w), (n.u2, n.w2)):
        uw = (u * w).sum()
        u = u + (F.softplus(uw) - 1 - uw) * w / (w**2).sum()
        x = x + u * torch.tanh((x * w).sum(-1, keepdim=True) + n.b)
    return n.head(x)


@net("radial flow", z0=matrix(6), al=vector(1), be=vector(1), head=perceptron(6, 8, 2))
def _(n, x):
    d = x - n.z0
    r = d.norm(dim=-1, keepdim=True)
    return n.head(x + F.softplus(n.be) * d / (F.softplus(n.al) + r))


@net("rational quadratic spline", p=perceptron(3, 8, 3 * (3 * 4 - 1)))
def _(n, x):
    a, b = x.chunk(2, -1)
    w, h, d = n.p(a).view(4, 3, 11).split((4, 4, 3), -1)
    w, h, d = w.softmax(-1), h.softmax(-1), F.softplus(d)
    cw = F.pad(w.cumsum(-1), (1, 0))
    y = b.sigmoid()
    k = (y[..., None] >= cw[..., :-1]).sum(-1, keepdim=True) - 1
    k = k.clamp(0, 3)

    def g(t):
        return t.gather(-1, k).squeeze(-1)

    d = F.pad(d, (1, 1), value=1.0)
    s = g(h) / g(w)
    t = (y - g(cw)) / g(w)
    d0, d1 = g(d), d.gather(-1, k + 1).squeeze(-1)
    return torch.cat(
        [
            a,
            g(F.pad(h.cumsum(-1), (1, 0)))
            + g(h) * (s * t**2 + d0 * t * (1 - t)) / (s + (d1 + d0 - 2 * s) * t * (1 - t)),
        ],
        -1,
    )


@net(
    "masked autoregressive flow",
    w1=matrix(8, 6),
    b1=vector(8),
    w2=matrix(12, 8),
    m1=lambda: (torch.rand(8, 6, generator=torch.Generator().manual_seed(5)) > 0.4).float(),
    m2=lambda: (torch.rand(12, 8, generator=torch.Generator().manual_seed(5)) > 0.4).float(),
)
def _(n, x):
    h = F.relu(F.linear(x, n.w1 * n.m1, n.b1))
    m, s = F.linear(h, n.w2 * n.m2).chunk(2, -1)
    return (x - m) * (-s).exp(), -s.sum(-1)


@net(
    "glow convolution in lu form",
    IMAGES,
    P=lambda: torch.eye(8).roll(1, 0),
    Lw=lambda: nn.Parameter(torch.randn(8, 8) * 0.1),
    U=lambda: nn.Parameter(torch.randn(8, 8) * 0.1),
    ls=vector(8),
    f=lambda: nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)),
)
def _(n, x):
    W = n.P @ (n.Lw.tril(-1) + torch.eye(8)) @ (n.U.triu(1) + torch.diag(n.ls.exp()))
    x = F.conv2d(x, W[..., None, None])
    a, b = x.chunk(2, 1)
    s, t = n.f(a).chunk(2, 1)
    return torch.cat([a, (b + t) * torch.sigmoid(s + 2)], 1)


@net(
    "residual flow, spectral norm and lipswish",
    f=lambda: nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)),
        nn.SiLU(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 6)),
    ),
)
def _(n, x):
    return x + n.f(x / 1.1)


@net("runge-kutta of a time-dependent field", f=perceptron(7, 8, 6))
def _(n, x):
    def f(t, y):
        return n.f(torch.cat([y, torch.full((len(y), 1), t)], -1))

    for t in (0.0, 0.5):
        k1 = f(t, x)
        k2 = f(t + 0.25, x + 0.25 * k1)
        k3 = f(t + 0.25, x + 0.25 * k2)
        k4 = f(t + 0.5, x + 0.5 * k3)
        x = x + (k1 + 2 * k2 + 2 * k3 + k4) / 12
    return x


@net("liquid time constants", SERIES, w=linear(12, 6), tau=vector(6), A=vector(6), out=linear(6, 2))
def _(n, x):
    h = torch.zeros(2, 6)
    for t in range(5):
        f = torch.sigmoid(n.w(torch.cat([x[:, t, :6], h], -1)))
        h = (h + 0.1 * f * n.A) / (1 + 0.1 * (1 / F.softplus(n.tau) + f))
    return n.out(h)


# generative
