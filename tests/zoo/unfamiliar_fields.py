"""Generators, images, sounds and fields."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .built import IMAGES, ROWS, SERIES, conv, conv1d, entries, linear, matrix, perceptron, vector
from .entry import Family

FAMILY = Family("generators and fields")
net = entries(FAMILY)


@net(
    "edm preconditioned denoiser",
    (ROWS, torch.rand(4, 1, generator=torch.Generator().manual_seed(5))),
    m=perceptron(7, 16, 6),
)
def _(n, x, s):
    cs = 0.25 / (s**2 + 0.25)
    co = s * 0.5 / (s**2 + 0.25).sqrt()
    ci = 1 / (s**2 + 0.25).sqrt()
    return cs * x + co * n.m(torch.cat([ci * x, s.log() / 4], -1))


@net(
    "magnitude-preserving layers with forced weight norm",
    w1=matrix(16, 6),
    w2=matrix(6, 16),
    g=lambda: nn.Parameter(torch.zeros(())),
)
def _(n, x):
    def nz(w):
        return w / (w.norm(dim=1, keepdim=True) + 1e-4)

    h = F.silu(F.linear(x, nz(n.w1) / 6**0.5)) / 0.596
    return F.linear(h, nz(n.w2) / 4) * n.g.exp()


@net(
    "stylegan modulated convolution",
    (torch.randn(2, 6, generator=torch.Generator().manual_seed(5)),),
    const=matrix(1, 8, 4, 4),
    map=perceptron(6, 8, 8),
    aff=linear(8, 8),
    w=matrix(6, 8, 3, 3),
    ns=vector(1),
    rgb=conv(6, 3),
)
def _(n, z):
    w = n.map(z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt())
    s = n.aff(w) + 1
    W = n.w[None] * s[:, None, :, None, None]
    W = W * (W.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
    x = F.conv2d(
        n.const.expand(2, -1, -1, -1).reshape(1, 16, 4, 4), W.flatten(0, 1), padding=1, groups=2
    ).view(2, 6, 4, 4)
    return n.rgb(F.leaky_relu(x + n.ns * torch.randn(2, 1, 4, 4), 0.2))


@net(
    "projection discriminator with minibatch deviation",
    (IMAGES, torch.tensor([0, 1])),
    c=lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 3)),
    emb=lambda: nn.Embedding(3, 9),
    l=linear(9, 1),
)
def _(n, x, y):
    h = F.leaky_relu(n.c(x)).sum((2, 3))
    h = torch.cat([h, h.std(0).mean().expand(2, 1)], 1)
    return n.l(h) + (n.emb(y) * h).sum(1, keepdim=True)


@net(
    "vae with free bits and kl",
    enc=perceptron(6, 8, 8),
    mu=linear(8, 3),
    lv=linear(8, 3),
    dec=perceptron(3, 8, 6),
)
def _(n, x):
    h = F.relu(n.enc(x))
    m, v = n.mu(h), n.lv(h)
    z = m + torch.exp(0.5 * v) * torch.randn_like(m)
    kl = -0.5 * (1 + v - m**2 - v.exp())
    return n.dec(z), kl.clamp(min=0.1).sum(-1)


@net(
    "ladder, precision-weighted merge",
    d=linear(6, 8),
    q=linear(8, 6),
    p=linear(3, 6),
    dec=perceptron(3, 8, 6),
)
def _(n, x):
    m1, l1 = n.q(F.relu(n.d(x))).chunk(2, -1)
    m2, l2 = n.p(torch.ones(4, 3)).chunk(2, -1)
    a, b = F.softplus(l1).reciprocal(), F.softplus(l2).reciprocal()
    return n.dec((m1 * a + m2 * b) / (a + b))


@net(
    "unet with int time, add and film",
    (IMAGES, torch.tensor([3, 5])),
    t1=linear(8, 16),
    t2=linear(16, 16),
    d=conv(8, 8, 3),
    m=conv(8, 8, 3),
    u=conv(16, 8, 3),
    gn=lambda: nn.GroupNorm(2, 8),
    out=conv(8, 8),
)
def _(n, x, t):
    f = torch.exp(-torch.arange(4) * 1.0)
    e = t[:, None] * f
    e = n.t2(F.silu(n.t1(torch.cat([e.sin(), e.cos()], -1))))
    s, b = e[..., None, None].chunk(2, 1)
    h = F.silu(n.d(x))
    low = n.gn(n.m(F.avg_pool2d(h, 2))) * (1 + s) + b
    return n.out(n.u(torch.cat([F.interpolate(F.silu(low), scale_factor=2), h], 1)))


@net(
    "score network divided by sigma",
    (ROWS, torch.rand(4, 1, generator=torch.Generator().manual_seed(5))),
    m=perceptron(7, 8, 6),
)
def _(n, x, s):
    return n.m(torch.cat([x, s], -1)) / s


@net("energy as half the square of a residual", m=perceptron(6, 8, 6))
def _(n, x):
    return 0.5 * (x - n.m(x)).square().sum(-1)


@net("classifier as an energy", m=perceptron(6, 8, 3))
def _(n, x):
    return -n.m(x).logsumexp(-1)


# vision


@net(
    "spatial transformer",
    IMAGES,
    loc=lambda: nn.Sequential(nn.Flatten(), nn.Linear(288, 8), nn.ReLU(), nn.Linear(8, 6)),
    c=conv(8, 4, 3),
    out=linear(4, 2),
)
def _(n, x):
    g = F.affine_grid(n.loc(x).view(2, 2, 3), x.shape, align_corners=False)
    return n.out(F.relu(n.c(F.grid_sample(x, g, align_corners=False))).mean((2, 3)))


@net("soft-argmax keypoints into an mlp", IMAGES, c=conv(8, 3, 3), m=perceptron(6, 8, 2))
def _(n, x):
    p = n.c(x).flatten(2).softmax(-1).view(2, 3, 6, 6)
    g = torch.linspace(-1, 1, 6)
    return n.m(torch.cat([(p.sum(2) * g).sum(-1), (p.sum(3) * g).sum(-1)], -1))


@net("normalised correlation volume", IMAGES, f=conv(8, 8, 3), g=conv(9, 4, 3), out=linear(4, 2))
def _(n, x):
    a, b = F.normalize(n.f(x), dim=1), F.normalize(n.f(x.flip(0)), dim=1)
    c = torch.stack([(a * b.roll((i, j), (2, 3))).sum(1) for i in (-1, 0, 1) for j in (-1, 0, 1)], 1)
    return n.out(F.relu(n.g(F.leaky_relu(c))).mean((2, 3)))


@net(
    "weight-standardised convolution with group norm",
    IMAGES,
    w=matrix(8, 8, 3, 3),
    g=lambda: nn.Parameter(torch.ones(8, 1, 1, 1)),
    gn=lambda: nn.GroupNorm(2, 8),
    out=linear(8, 2),
)
def _(n, x):
    v, m = torch.var_mean(n.w, (1, 2, 3), keepdim=True)
    w = (n.w - m) * torch.rsqrt(v * 72 + 1e-4) * n.g
    return n.out(F.relu(n.gn(F.conv2d(x, w, padding=1))).mean((2, 3)))


@net(
    "scaled weight standardisation, no norm",
    IMAGES,
    w=matrix(8, 8, 3, 3),
    g=lambda: nn.Parameter(torch.ones(8, 1, 1, 1)),
    b=vector(8),
    out=linear(8, 2),
)
def _(n, x):
    w = F.batch_norm(
        n.w.view(1, 8, -1), None, None, weight=(n.g * 72**-0.5).view(-1), training=True, eps=1e-6
    ).view_as(n.w)
    return n.out((F.gelu(F.conv2d(x, w, n.b, padding=1)) * 1.7).mean((2, 3)))


@net(
    "re-parametrised branches, identity and batch norms",
    IMAGES,
    c3=conv(8, 8, 3),
    c1=conv(8, 8),
    b3=lambda: nn.BatchNorm2d(8),
    b1=lambda: nn.BatchNorm2d(8),
    b0=lambda: nn.BatchNorm2d(8),
    out=linear(8, 2),
)
def _(n, x):
    return n.out(F.relu(n.b3(n.c3(x)) + n.b1(n.c1(x)) + n.b0(x)).mean((2, 3)))


@net(
    "frozen batch norm in buffers",
    IMAGES,
    c=conv(8, 8, 3),
    w=lambda: torch.rand(8) + 0.5,
    b=lambda: torch.randn(8),
    rm=lambda: torch.randn(8),
    rv=lambda: torch.rand(8) + 0.5,
    out=linear(8, 2),
)
def _(n, x):
    s = n.w * n.rv.rsqrt()
    return n.out(F.relu(n.c(x) * s[:, None, None] + (n.b - n.rm * s)[:, None, None]).mean((2, 3)))


@net(
    "blur pool then activation, fixed kernel",
    IMAGES,
    c=conv(8, 8, 3),
    k=lambda: torch.ones(8, 1, 2, 2) / 4,
    out=linear(8, 2),
)
def _(n, x):
    return n.out(F.relu(F.conv2d(n.c(x), n.k, stride=2, groups=8)).mean((2, 3)))


@net("stft mask", torch.randn(2, 32, generator=torch.Generator().manual_seed(5)), m=perceptron(5, 8, 5))
def _(n, x):
    s = torch.stft(x, 8, return_complex=True, window=torch.ones(8))
    k = torch.sigmoid(n.m(s.abs().mT)).mT
    return torch.istft(s * k, 8, window=torch.ones(8))


@net(
    "wavenet block",
    torch.randn(2, 8, 12, generator=torch.Generator().manual_seed(5)),
    f=conv1d(8, 8, 3),
    g=conv1d(8, 8, 3),
    c=conv1d(8, 8, 1),
    sk=conv1d(8, 4, 1),
    o=conv1d(4, 2, 1),
)
def _(n, x):
    s = torch.zeros(())
    for _ in range(2):
        h = torch.tanh(n.f(x)) * torch.sigmoid(n.g(x))
        s = s + n.sk(h)
        x = x + n.c(h)
    return n.o(F.relu(s))


@net(
    "conv-tasnet with global norm by hand",
    torch.randn(2, 1, 32, generator=torch.Generator().manual_seed(5)),
    e=lambda: nn.Conv1d(1, 8, 4, 2),
    b=conv1d(8, 8, 1),
    pr=vector(1),
    gm=lambda: nn.Parameter(torch.ones(8, 1)),
    bt=lambda: nn.Parameter(torch.zeros(8, 1)),
    m=conv1d(8, 8, 1),
    d=lambda: nn.ConvTranspose1d(8, 1, 4, 2),
)
def _(n, x):
    w = F.relu(n.e(x))
    h = F.prelu(n.b(w), n.pr)
    mu = h.mean((1, 2), keepdim=True)
    h = n.gm * (h - mu) / ((h - mu).pow(2).mean((1, 2), keepdim=True) + 1e-8).sqrt() + n.bt
    return n.d(w * n.m(h).sigmoid())


@net(
    "deeponet",
    (ROWS, torch.randn(7, 2, generator=torch.Generator().manual_seed(5))),
    br=perceptron(6, 8, 5),
    tr=perceptron(2, 8, 5),
    b=vector(1),
)
def _(n, u, y):
    return torch.einsum("bp,np->bn", n.br(u), F.gelu(n.tr(y))) + n.b


@net(
    "fourier operator, real pairs viewed as complex",
    SERIES,
    refusal="complex numbers",
    w=matrix(8, 8, 3, 2),
    c=linear(8, 8),
    out=linear(8, 2),
)
def _(n, x):
    y = torch.einsum("bix,iox->box", torch.fft.rfft(x.mT), torch.view_as_complex(n.w))
    return n.out(F.gelu(torch.fft.irfft(y, n=5).mT + n.c(x)))


@net(
    "hash-grid encoding",
    torch.rand(5, 2, generator=torch.Generator().manual_seed(5)),
    tab=lambda: nn.Embedding(16, 2),
    m=perceptron(2, 8, 3),
)
def _(n, x):
    p = x * 3
    i = p.floor().long()
    f = p - i
    o = 0
    for a in (0, 1):
        for b in (0, 1):
            o = o + n.tab(((i[:, 0] + a) * 7 + (i[:, 1] + b) * 13) % 16) * (
                (f[:, :1] if a else 1 - f[:, :1]) * (f[:, 1:] if b else 1 - f[:, 1:])
            )
    return n.m(o)


@net(
    "tri-plane features",
    torch.rand(1, 5, 3, generator=torch.Generator().manual_seed(5)) * 2 - 1,
    pl=matrix(3, 4, 6, 6),
    m=perceptron(4, 8, 3),
)
def _(n, x):
    grids = [x[:, :, None, [i, (i + 1) % 3]] for i in range(3)]
    planes = [F.grid_sample(n.pl[i : i + 1], grid, align_corners=True) for i, grid in enumerate(grids)]
    return n.m(torch.stack(planes).sum(0).squeeze(-1).mT)


@net(
    "volume rendering",
    torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(5)),
    m=perceptron(3, 16, 4),
)
def _(n, x):
    o = n.m(x)
    s = F.relu(o[..., 0])
    al = 1 - torch.exp(-s * 0.1)
    TOKENS = torch.cumprod(torch.cat([torch.ones(2, 1), 1 - al + 1e-10], -1), -1)[:, :-1]
    return ((al * TOKENS)[..., None] * o[..., 1:].sigmoid()).sum(1)


@net("siren with weights scaled by omega", a=linear(6, 8), b=linear(8, 8), c=linear(8, 2))
def _(n, x):
    return n.c(torch.sin(30 * n.b(torch.sin(30 * n.a(x)))))


# KAN


@net(
    "kan, b-splines",
    grid=lambda: torch.linspace(-2, 2, 8).expand(6, -1).clone(),
    coef=matrix(8, 6, 4),
    base=matrix(8, 6),
    sc=lambda: nn.Parameter(torch.rand(8, 6)),
    out=linear(8, 2),
)
def _(n, x):
    g = n.grid
    xx = x[..., None]
    b = ((xx >= g[:, :-1]) & (xx < g[:, 1:])).float()
    for k in range(1, 4):
        b = (xx - g[:, : -(k + 1)]) / (g[:, k:-1] - g[:, : -(k + 1)]) * b[..., :-1] + (g[:, k + 1 :] - xx) / (
            g[:, k + 1 :] - g[:, 1:-k]
        ) * b[..., 1:]
    return n.out(F.linear(F.silu(x), n.base) + F.linear(b.flatten(1), (n.coef * n.sc[..., None]).flatten(1)))


@net("two kan layers", c1=matrix(8, 6, 5), c2=matrix(2, 8, 5))
def _(n, x):
    def basis(t):
        return torch.exp(-((t[..., None] - torch.linspace(-2, 2, 5)) ** 2))

    return torch.einsum("big,oig->bo", basis(torch.einsum("big,oig->bo", basis(x), n.c1)), n.c2)


@net("chebyshev kan", c1=matrix(6, 8, 4), c2=matrix(8, 2, 4))
def _(n, x):
    def T(t):
        return torch.cos(torch.arange(4) * torch.acos(torch.tanh(t)[..., None].clamp(-0.999, 0.999)))

    return torch.einsum("bid,iod->bo", T(torch.einsum("bid,iod->bo", T(x), n.c1)), n.c2)


# lora
