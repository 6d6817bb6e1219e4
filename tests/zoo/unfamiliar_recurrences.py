"""Mixtures of experts and language models that remember by a recurrence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .built import SERIES, conv1d, entries, linear, matrix, perceptron, vector
from .entry import Family
from .written import mlp

FAMILY = Family("experts and recurrences")
net = entries(FAMILY)


def heads(x, h=2):
    return x.unflatten(-1, (h, -1)).transpose(1, 2)


@net(
    "moe, renormalised top-2 gates with shared expert",
    SERIES,
    gate=linear(8, 4, False),
    up=matrix(4, 8, 12),
    down=matrix(4, 12, 8),
    shared=perceptron(8, 12, 8),
    head=linear(8, 2),
)
def _(n, x):
    p = n.gate(x).softmax(-1)
    w, i = p.topk(2, -1)
    w = w / w.sum(-1, keepdim=True)
    h = F.silu(torch.einsum("btd,btkdh->btkh", x, n.up[i]))
    y = torch.einsum("btkh,btkhd->btkd", h, n.down[i])
    return n.head((y * w[..., None]).sum(2) + n.shared(x))


@net(
    "moe, sigmoid router with bias correction",
    SERIES,
    gate=linear(8, 4, False),
    bias=vector(4),
    experts=lambda: nn.ModuleList([mlp(8, 12, 8) for _ in range(4)]),
    head=linear(8, 2),
)
def _(n, x):
    s = n.gate(x).sigmoid()
    idx = (s + n.bias).topk(2, -1).indices
    w = s.gather(-1, idx)
    w = w / (w.sum(-1, keepdim=True) + 1e-20)
    flat, wi, ii = x.flatten(0, 1), w.flatten(0, 1), idx.flatten(0, 1)
    out = torch.zeros_like(flat)
    for e, ex in enumerate(n.experts):
        rows, k = torch.where(ii == e)
        out.index_add_(0, rows, ex(flat[rows]) * wi[rows, k, None])
    return n.head(out.view_as(x))


@net(
    "moe, noisy top-k gating with softplus noise",
    SERIES,
    gate=linear(8, 4, False),
    noise=linear(8, 4, False),
    experts=lambda: nn.ModuleList([mlp(8, 12, 8) for _ in range(4)]),
    head=linear(8, 2),
)
def _(n, x):
    logits = n.gate(x) + torch.randn(2, 5, 4) * F.softplus(n.noise(x))
    v, i = logits.topk(2, -1)
    w = torch.full_like(logits, -torch.inf).scatter(-1, i, v).softmax(-1)
    y = torch.stack([e(x) for e in n.experts], -2)
    return n.head((w[..., None] * y).sum(-2))


@net(
    "soft moe, dispatch and combine",
    SERIES,
    phi=matrix(8, 3, 2),
    experts=lambda: nn.ModuleList([mlp(8, 12, 8) for _ in range(3)]),
    head=linear(8, 2),
)
def _(n, x):
    logits = torch.einsum("bnd,dep->bnep", x, n.phi)
    disp = logits.softmax(1)
    comb = logits.flatten(2).softmax(-1).view_as(logits)
    slots = torch.einsum("bnd,bnep->bepd", x, disp)
    y = torch.stack([e(slots[:, k]) for k, e in enumerate(n.experts)], 1)
    return n.head(torch.einsum("bepd,bnep->bnd", y, comb))


@net(
    "switch, capacity by cumsum",
    SERIES,
    gate=linear(8, 3),
    up=matrix(3, 8, 12),
    down=matrix(3, 12, 8),
    head=linear(8, 2),
)
def _(n, x):
    f = x.flatten(0, 1)
    p = n.gate(f).softmax(-1)
    g, i = p.max(-1)
    oh = F.one_hot(i, 3)
    pos = (oh.cumsum(0) * oh - 1).max(-1).values.clamp(max=7)
    buf = torch.zeros(3, 8, 8)
    buf[i, pos] = f
    y = torch.bmm(F.gelu(torch.bmm(buf, n.up)), n.down)[i, pos]
    return n.head(y * g[:, None])


@net(
    "mixture of depths, tokens chosen by a router",
    SERIES,
    router=linear(8, 1, False),
    block=perceptron(8, 16, 8),
    head=linear(8, 2),
)
def _(n, x):
    s = n.router(x).squeeze(-1)
    v, i = s.topk(3, 1)
    ix = i[..., None].expand(-1, -1, 8)
    y = n.block(x.gather(1, ix)) * v.sigmoid()[..., None]
    return n.head(x.scatter_add(1, ix, y))


@net(
    "hard choice by argmax with a straight-through",
    SERIES,
    router=linear(8, 3, False),
    ex=matrix(3, 8, 8),
    head=linear(8, 2),
)
def _(n, x):
    p = n.router(x).softmax(-1)
    h = F.one_hot(p.argmax(-1), 3).to(p) - p.detach() + p
    return n.head(F.relu(torch.einsum("btd,edh,bte->bth", x, n.ex, h)))


@net(
    "gated delta net",
    SERIES,
    q=linear(8, 8, False),
    k=linear(8, 8, False),
    v=linear(8, 8, False),
    a=linear(8, 2),
    b=linear(8, 2),
    g=linear(8, 8),
    A_log=vector(2),
    dt=vector(2),
    norm=lambda: nn.RMSNorm(4),
    o=linear(8, 8),
    cq=conv1d(8, 8, 3, 8),
    head=linear(8, 2),
)
def _(n, x):
    q = F.silu(n.cq(n.q(x).mT).mT)
    q, k, v = heads(q), heads(F.silu(n.k(x))), heads(n.v(x))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    beta = n.b(x).sigmoid().mT
    g = (-n.A_log.exp() * F.softplus(n.a(x) + n.dt)).mT
    st = torch.zeros(2, 2, 4, 4)
    out = []
    for t in range(5):
        st = st * g[:, :, t].exp()[..., None, None]
        mem = (st * k[:, :, t, :, None]).sum(-2)
        d = (v[:, :, t] - mem) * beta[:, :, t, None]
        st = st + k[:, :, t, :, None] * d[..., None, :]
        out.append((st * q[:, :, t, :, None]).sum(-2))
    y = n.norm(torch.stack(out, 1)) * F.silu(n.g(x).unflatten(-1, (2, 4)))
    return n.head(x + n.o(y.flatten(2)))


@net(
    "rwkv 6, data-dependent decay with lora",
    SERIES,
    mu=vector(5, 8),
    w1=matrix(8, 3),
    w2=matrix(3, 8),
    w0=vector(8),
    u=vector(8),
    r=linear(8, 8, False),
    k=linear(8, 8, False),
    v=linear(8, 8, False),
    g=linear(8, 8, False),
    ln=lambda: nn.GroupNorm(2, 8),
    o=linear(8, 8, False),
    head=linear(8, 2),
)
def _(n, x):
    xx = F.pad(x, (0, 0, 1, -1)) - x
    xr, xk, xv, xg, xw = (x + xx * m for m in n.mu)
    r, k, v, g = n.r(xr), n.k(xk), n.v(xv), F.silu(n.g(xg))
    w = torch.exp(-torch.exp(n.w0 + torch.tanh(xw @ n.w1) @ n.w2))
    st = torch.zeros(2, 8, 8)
    out = []
    for t in range(5):
        kv = k[:, t, :, None] * v[:, t, None]
        out.append((r[:, t, None] @ (st + n.u[:, None] * kv)).squeeze(1))
        st = st * w[:, t, :, None] + kv
    y = n.ln(torch.stack(out, 1).flatten(0, 1)).view_as(x)
    return n.head(x + n.o(y * g))


@net(
    "retnet with decay and swish gate",
    SERIES,
    q=linear(8, 8, False),
    k=linear(8, 8, False),
    v=linear(8, 8, False),
    g=linear(8, 8, False),
    gn=lambda: nn.LayerNorm(4, elementwise_affine=False),
    o=linear(8, 8, False),
    head=linear(8, 2),
)
def _(n, x):
    q, k, v = heads(n.q(x)), heads(n.k(x)) * 4**-0.5, heads(n.v(x))
    i = torch.arange(5)
    d = torch.tensor([0.9, 0.8])[:, None, None] ** (i[:, None] - i).clamp(min=0) * (i[:, None] >= i)
    a = q @ k.mT * d
    a = a / a.detach().abs().sum(-1, keepdim=True).clamp(min=1)
    y = n.gn(a @ v).transpose(1, 2).flatten(2)
    return n.head(n.o(F.silu(n.g(x)) * y))


@net(
    "mamba 2 by segment sums",
    SERIES,
    inp=linear(8, 8 + 8 + 4 + 4 + 2, False),
    conv=conv1d(16, 16, 3, 16),
    A_log=vector(2),
    dtb=vector(2),
    D=vector(2),
    norm=lambda: nn.RMSNorm(8),
    out=linear(8, 8, False),
    head=linear(8, 2),
)
def _(n, x):
    z, xbc, dt = n.inp(x).split((8, 16, 2), -1)
    xbc = F.silu(n.conv(xbc.mT).mT)
    h, B, Cc = xbc.split((8, 4, 4), -1)
    dt = F.softplus(dt + n.dtb)
    A = -n.A_log.exp() * dt
    cs = A.cumsum(1)
    seg = cs[:, :, None] - cs[:, None]
    Ld = torch.where(torch.ones(5, 5).tril().bool()[None, :, :, None], seg, -torch.inf).exp()
    hh = h.unflatten(-1, (2, 4))
    y = (
        torch.einsum("bls,blsh,bsh,bshp->blhp", torch.einsum("bln,bsn->bls", Cc, B), Ld, dt, hh)
        + n.D[:, None] * hh
    )
    y = n.norm(y.flatten(2) * F.silu(z))
    return n.head(x + n.out(y))


@net("min lstm in log space", SERIES, f=linear(8, 8), i=linear(8, 8), h=linear(8, 8), head=linear(8, 2))
def _(n, x):
    f, i, h = n.f(x), n.i(x), n.h(x)
    d = F.softplus(-f) - F.softplus(-i)
    lf, li = -F.softplus(d), -F.softplus(-d)
    lh = torch.where(h >= 0, (F.relu(h) + 0.5).log(), -F.softplus(-h))
    a = F.pad(lf.cumsum(1), (0, 0, 1, 0))
    v = torch.cat([torch.zeros(2, 1, 8), li + lh], 1)
    return n.head((a + (v - a).logcumsumexp(1)).exp()[:, 1:])


@net(
    "xlstm, matrix memory with exponential gates",
    SERIES,
    q=linear(8, 4),
    k=linear(8, 4),
    v=linear(8, 4),
    i=linear(8, 1),
    f=linear(8, 1),
    o=linear(8, 4),
    head=linear(4, 2),
)
def _(n, x):
    Cm, nn_, m = torch.zeros(2, 4, 4), torch.zeros(2, 4), torch.zeros(2, 1)
    out = []
    for t in range(5):
        xt = x[:, t]
        q, k, v = n.q(xt), n.k(xt) / 2, n.v(xt)
        i, f = n.i(xt), F.logsigmoid(n.f(xt))
        m2 = torch.maximum(f + m, i)
        ig, fg = (i - m2).exp(), (f + m - m2).exp()
        m = m2
        Cm = fg[..., None] * Cm + ig[..., None] * v[..., None] * k[:, None]
        nn_ = fg * nn_ + ig * k
        den = (nn_ * q).sum(-1, keepdim=True).abs().clamp(min=1.0)
        out.append(n.o(xt).sigmoid() * (Cm @ q[..., None]).squeeze(-1) / den)
    return n.head(torch.stack(out, 1))


@net(
    "griffin, real gated linear recurrence",
    SERIES,
    x1=linear(8, 8),
    x2=linear(8, 8),
    conv=conv1d(8, 8, 3, 8),
    ga=linear(8, 8),
    gx=linear(8, 8),
    lam=vector(8),
    o=linear(8, 8),
    head=linear(8, 2),
)
def _(n, x):
    g = F.gelu(n.x1(x))
    h = n.conv(n.x2(x).mT).mT
    r, i = n.ga(h).sigmoid(), n.gx(h).sigmoid()
    loga = -8 * r * F.softplus(n.lam)
    a = loga.exp()
    b = (1 - (2 * loga).exp() + 1e-6).sqrt() * i * h
    s = torch.zeros(2, 8)
    out = []
    for t in range(5):
        s = a[:, t] * s + b[:, t]
        out.append(s)
    return n.head(n.o(torch.stack(out, 1) * g))


@net(
    "hyena, filters from positions, decay and gates",
    SERIES,
    inp=linear(8, 24),
    short=conv1d(24, 24, 3, 24),
    f1=linear(3, 8),
    f2=linear(8, 8),
    freq=vector(8),
    deltas=vector(8),
    bias=vector(8),
    out=linear(8, 8),
    head=linear(8, 2),
)
def _(n, x):
    a, b, v = n.short(n.inp(x).mT)[..., :5].chunk(3, 1)
    t = torch.linspace(0, 1, 5)[:, None]
    z = torch.cat([t, (6.28 * t).cos(), (6.28 * t).sin()], -1)
    h = n.f2(torch.sin(n.freq * n.f1(z))) * torch.exp(-t * n.deltas.abs())
    v = v * b
    y = torch.fft.irfft(torch.fft.rfft(v, 10) * torch.fft.rfft(h.mT, 10) / 10, 10, norm="forward")[..., :5]
    return n.head(n.out(((y + v * n.bias[:, None]) * a).mT))


@net(
    "lightning attention with feature map silu and a gate",
    SERIES,
    qkv=linear(8, 24, False),
    g=linear(8, 8, False),
    norm=lambda: nn.RMSNorm(8),
    o=linear(8, 8, False),
    head=linear(8, 2),
)
def _(n, x):
    q, k, v = F.silu(n.qkv(x)).chunk(3, -1)
    y = ((q @ k.mT) * torch.ones(5, 5).tril()) @ v
    return n.head(n.o(n.g(x).sigmoid() * n.norm(y)))


@net(
    "based, taylor feature map",
    SERIES,
    q=linear(8, 4, False),
    k=linear(8, 4, False),
    v=linear(8, 8, False),
    o=linear(8, 8, False),
    head=linear(8, 2),
)
def _(n, x):
    def phi(h):
        return torch.cat([torch.ones(2, 5, 1), h, (h[..., None] * h[..., None, :]).flatten(-2) / 2**0.5], -1)

    q, k = phi(n.q(x)), phi(n.k(x))
    a = (q @ k.mT) * torch.ones(5, 5).tril()
    return n.head(n.o(a @ n.v(x) / (a.sum(-1, keepdim=True) + 1e-6)))


@net(
    "test-time training layer, gradient by hand",
    SERIES,
    q=linear(8, 8),
    k=linear(8, 8),
    v=linear(8, 8),
    W=matrix(8, 8),
    lr=linear(8, 1),
    head=linear(8, 2),
)
def _(n, x):
    q, k, v = n.q(x), n.k(x), n.v(x)
    W = n.W.expand(2, 8, 8)
    out = []
    for t in range(5):
        kt = k[:, t, None]
        e = kt @ W - v[:, t, None]
        W = W - n.lr(x[:, t]).sigmoid()[..., None] * kt.mT @ e
        out.append(q[:, t, None] @ W)
    return n.head(torch.cat(out, 1))
