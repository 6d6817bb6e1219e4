"""Kinds of attention."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .built import SERIES, entries, linear, matrix, perceptron, vector
from .entry import Family

FAMILY = Family("kinds of attention")
net = entries(FAMILY)


def heads(x, h=2):
    return x.unflatten(-1, (h, -1)).transpose(1, 2)


def qkv(n, x):
    return n.qkv(x).chunk(3, -1)


QKV = {"qkv": linear(8, 24), "o": linear(8, 8), "head": linear(8, 2)}


@net(
    "differential attention",
    SERIES,
    q=linear(8, 16, False),
    k=linear(8, 16, False),
    v=linear(8, 8, False),
    l1=vector(4),
    l2=vector(4),
    l3=vector(4),
    l4=vector(4),
    sub=lambda: nn.RMSNorm(8),
    o=linear(8, 8),
    head=linear(8, 2),
)
def _(n, x):
    (q1, q2), (k1, k2) = n.q(x).chunk(2, -1), n.k(x).chunk(2, -1)
    lam = (n.l1 * n.l2).sum().exp() - (n.l3 * n.l4).sum().exp() + 0.8
    a = (q1 @ k1.mT / 8**0.5).softmax(-1) - lam * (q2 @ k2.mT / 8**0.5).softmax(-1)
    return n.head(n.o(n.sub(a @ n.v(x)) * 0.2))


@net("soft-capped logits and attention sinks", SERIES, sink=vector(1), **QKV)
def _(n, x):
    q, k, v = qkv(n, x)
    a = torch.tanh(q @ k.mT / 8**0.5 / 30) * 30
    a = torch.cat([a, n.sink.expand(2, 5, 1)], -1).softmax(-1)[..., :-1]
    return n.head(n.o(a @ v))


@net(
    "latent attention with rope, low-rank keys",
    SERIES,
    dq=linear(8, 6, False),
    qn=lambda: nn.RMSNorm(6),
    uq=linear(6, 2 * 6, False),
    dkv=linear(8, 5 + 2, False),
    kn=lambda: nn.RMSNorm(5),
    ukv=linear(5, 2 * 8, False),
    o=linear(8, 8),
    head=linear(8, 2),
)
def _(n, x):
    def rope(t):
        a, b = t.chunk(2, -1)
        p = torch.arange(5.0)[:, None]
        return torch.cat([a * p.cos() - b * p.sin(), b * p.cos() + a * p.sin()], -1)

    q = n.uq(n.qn(n.dq(x))).unflatten(-1, (2, 6)).transpose(1, 2)
    qn_, qr = q.split((4, 2), -1)
    c, kr = n.dkv(x).split((5, 2), -1)
    kv = n.ukv(n.kn(c)).unflatten(-1, (2, 8)).transpose(1, 2)
    kn_, v = kv.split((4, 4), -1)
    q = torch.cat([qn_, rope(qr)], -1)
    k = torch.cat([kn_, rope(kr)[:, None].expand(-1, 2, -1, -1)], -1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return n.head(n.o(y.transpose(1, 2).flatten(2)))


@net(
    "grouped queries with learnt scale and norm",
    SERIES,
    q=linear(8, 8),
    k=linear(8, 4),
    v=linear(8, 4),
    qn=lambda: nn.RMSNorm(4),
    kn=lambda: nn.RMSNorm(4),
    o=linear(8, 8),
    head=linear(8, 2),
)
def _(n, x):
    q, k, v = (f(x).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (n.q, n.k, n.v))
    y = F.scaled_dot_product_attention(n.qn(q), n.kn(k), v, enable_gqa=True)
    return n.head(n.o(y.transpose(1, 2).flatten(2)))


@net(
    "ngpt, normalised weights and steps along the sphere",
    SERIES,
    qkv=linear(8, 24, False),
    o=linear(8, 8, False),
    up=linear(8, 16, False),
    down=linear(16, 8, False),
    sqk=vector(8),
    a1=vector(8),
    a2=vector(8),
    su=vector(16),
    head=linear(8, 2),
)
def _(n, x):
    def nz(t):
        return F.normalize(t, dim=-1)

    x = nz(x)
    q, k, v = n.qkv(x).chunk(3, -1)
    q, k = nz(q) * n.sqk, nz(k) * n.sqk
    y = nz(n.o(F.scaled_dot_product_attention(q, k, v, scale=8**0.5)))
    x = nz(x + n.a1.abs() * (y - x))
    y = nz(n.down(F.silu(n.up(x) * n.su * 8**0.5)))
    x = nz(x + n.a2.abs() * (y - x))
    return n.head(x)


@net(
    "gated attention unit with squared relu",
    SERIES,
    uv=linear(8, 24),
    z=linear(8, 4),
    gam=vector(2, 4),
    bet=vector(2, 4),
    o=linear(12, 8),
    head=linear(8, 2),
)
def _(n, x):
    u, v = F.silu(n.uv(x)).chunk(2, -1)
    z = F.silu(n.z(x))
    q, k = torch.einsum("...r,hr->...hr", z, n.gam).add(n.bet).unbind(-2)
    a = F.relu(q @ k.mT / 5) ** 2
    return n.head(x + n.o(u * (a @ v)))


@net(
    "mega, damped moving average then attention",
    SERIES,
    al=vector(8, 2),
    de=vector(8, 2),
    be=vector(8, 2),
    et=vector(8, 2),
    z=linear(8, 4),
    gm=vector(2, 4),
    bt=vector(2, 4),
    v=linear(8, 8),
    f=linear(8, 8),
    h=linear(8, 8),
    u=matrix(8, 8),
    head=linear(8, 2),
)
def _(n, x):
    p, q = n.al.sigmoid(), 1 - n.al.sigmoid() * n.de.sigmoid()
    ker = (p * n.be)[..., None] * q[..., None].log().mul(torch.arange(5.0)).exp()
    ker = (ker * n.et[..., None]).sum(1)
    m = F.silu(torch.fft.irfft(torch.fft.rfft(x.mT, 10) * torch.fft.rfft(ker, 10), 10)[..., :5].mT)
    z = F.silu(n.z(m))
    q_, k_ = (z[..., None, :] * n.gm + n.bt).unbind(-2)
    y = (q_ @ k_.mT / 2).softmax(-1) @ F.silu(n.v(x))
    f = n.f(m).sigmoid()
    hh = F.silu(n.h(m) + y @ n.u)
    return n.head(f * hh + (1 - f) * x)


@net("agent attention, two softmaxes", SERIES, **QKV)
def _(n, x):
    q, k, v = qkv(n, x)
    a = F.adaptive_avg_pool1d(q.mT, 2).mT
    return n.head(n.o((q @ a.mT / 8**0.5).softmax(-1) @ ((a @ k.mT / 8**0.5).softmax(-1) @ v)))


@net("cross-covariance attention with temperature", SERIES, temp=vector(1), **QKV)
def _(n, x):
    q, k, v = (F.normalize(t.mT, dim=-1) if i < 2 else t.mT for i, t in enumerate(qkv(n, x)))
    return n.head(n.o(((q @ k.mT * n.temp).softmax(-1) @ v).mT))


@net(
    "vector attention of points",
    SERIES,
    pos=perceptron(3, 8, 8),
    q=linear(8, 8),
    k=linear(8, 8),
    v=linear(8, 8),
    w=perceptron(8, 8, 8),
    head=linear(8, 2),
)
def _(n, x):
    p = x[..., :3]
    d = n.pos(p[:, :, None] - p[:, None])
    a = n.w(n.q(x)[:, :, None] - n.k(x)[:, None] + d).softmax(2)
    return n.head((a * (n.v(x)[:, None] + d)).sum(2))


@net("normalised by a sum of relu attention", SERIES, **QKV)
def _(n, x):
    q, k, v = qkv(n, x)
    q, k = F.relu(q), F.relu(k)
    return n.head(n.o((q @ (k.mT @ v)) / (q @ k.sum(1)[..., None] + 1e-6)))


@net("cosformer", SERIES, **QKV)
def _(n, x):
    q, k, v = qkv(n, x)
    q, k = F.relu(q), F.relu(k)
    t = math.pi / 2 * torch.arange(5.0) / 5
    q = torch.cat([q * t.cos()[:, None], q * t.sin()[:, None]], -1)
    k = torch.cat([k * t.cos()[:, None], k * t.sin()[:, None]], -1)
    den = 1 / torch.clamp_min(torch.einsum("nlc,nc->nl", q, k.sum(1)), 1e-6)
    return n.head(n.o(torch.einsum("nld,ndm,nl->nlm", q, torch.einsum("nld,nlm->ndm", k, v), den)))


@net("nystrom attention, iterated inverse", SERIES, **QKV)
def _(n, x):
    q, k, v = qkv(n, x)
    q = q * 8**-0.5
    ql, kl = q[:, :4].unflatten(1, (2, 2)).mean(2), k[:, :4].unflatten(1, (2, 2)).mean(2)
    k1, k2, k3 = (q @ kl.mT).softmax(-1), (ql @ kl.mT).softmax(-1), (ql @ k.mT).softmax(-1)
    z = k2.mT / (k2.abs().sum(-1).max() * k2.abs().sum(-2).max())
    e = torch.eye(2)
    for _ in range(3):
        kz = k2 @ z
        z = 0.25 * z @ (13 * e - kz @ (15 * e - kz @ (7 * e - kz)))
    return n.head(n.o(k1 @ z @ (k3 @ v)))


@net("sigmoid-gated attention output", SERIES, g=linear(8, 8), **QKV)
def _(n, x):
    q, k, v = qkv(n, x)
    return n.head(n.o(F.scaled_dot_product_attention(q, k, v) * n.g(x).sigmoid()))


@net(
    "t5 style, relative bias table, no scale",
    SERIES,
    q=linear(8, 8, False),
    k=linear(8, 8, False),
    v=linear(8, 8, False),
    table=lambda: nn.Embedding(9, 2),
    o=linear(8, 8, False),
    head=linear(8, 2),
)
def _(n, x):
    q, k, v = (heads(f(x)) for f in (n.q, n.k, n.v))
    i = torch.arange(5)
    b = n.table((i[:, None] - i) + 4).permute(2, 0, 1)
    return n.head(n.o(((q @ k.mT + b).softmax(-1) @ v).transpose(1, 2).flatten(2)))


@net(
    "memory layer with entmax-like sparsemax",
    SERIES,
    q=linear(8, 8),
    k=linear(8, 8),
    v=linear(8, 8),
    head=linear(8, 2),
)
def _(n, x):
    z = n.q(x) @ n.k(x).mT
    s, _ = z.sort(-1, descending=True)
    r = torch.arange(1, 6.0)
    c = s.cumsum(-1) - 1
    sup = (r * s > c).sum(-1, keepdim=True)
    tau = c.gather(-1, sup - 1) / sup
    return n.head((z - tau).clamp(min=0) @ n.v(x))


@net("sinkhorn matching", SERIES, a=linear(8, 8), b=linear(8, 8), v=linear(8, 8), head=linear(8, 2))
def _(n, x):
    z = n.a(x) @ n.b(x.flip(1)).mT / 8**0.5
    u, w = torch.zeros(2, 5), torch.zeros(2, 5)
    for _ in range(3):
        u = -(z + w[:, None]).logsumexp(2)
        w = -(z + u[..., None]).logsumexp(1)
    return n.head((z + u[..., None] + w[:, None]).exp() @ n.v(x))
