"""Ensembles, flows and weights that are computed from others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("reparametrised")


@FAMILY.entry("siamese contrastive")
def siamese_contrastive():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = mlp(6, 16, 8)

        def forward(self, a, b):
            return F.cosine_similarity(self.e(a), self.e(b))

    return M(), (torch.randn(3, 6), torch.randn(3, 6))


@FAMILY.entry("dueling dqn")
def dueling_dqn():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
            self.v = mlp(16, 16, 1)
            self.a = mlp(16, 16, 4)

        def forward(self, x):
            h = self.b(x)
            a = self.a(h)
            return self.v(h) + a - a.mean(-1, keepdim=True)

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("twin q raw ensemble")
def twin_q_raw_ensemble():
    class EL(nn.Module):
        def __init__(self, i, o, E=3):
            super().__init__()
            self.w = nn.Parameter(torch.randn(E, i, o) * 0.3)
            self.b = nn.Parameter(torch.zeros(E, 1, o))

        def forward(self, x):
            return torch.baddbmm(self.b, x, self.w)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.ModuleList([EL(8, 16), EL(16, 16), EL(16, 1)])

        def forward(self, x, a):
            h = torch.cat([x, a], -1).expand(3, -1, -1)
            for layer in self.l[:-1]:
                h = F.relu(layer(h))
            return self.l[-1](h).min(0).values

    return M(), (torch.randn(4, 6), torch.randn(4, 2))


@FAMILY.entry("decision transformer")
def decision_transformer():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            d = 16
            self.s, self.a, self.r = nn.Linear(6, d), nn.Linear(2, d), nn.Linear(1, d)
            self.t = nn.Embedding(20, d)
            self.ln = nn.LayerNorm(d)
            self.blk = nn.TransformerEncoderLayer(d, 2, 32, batch_first=True, norm_first=True, dropout=0.0)
            self.o = nn.Linear(d, 2)

        def forward(self, S, A, G, t):
            e = self.t(t)
            x = torch.stack([self.r(G) + e, self.s(S) + e, self.a(A) + e], 2).flatten(1, 2)
            x = self.blk(
                self.ln(x), src_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(x)
            )
            return torch.tanh(self.o(x[:, 1::3]))

    return M(), (
        torch.randn(2, 4, 6),
        torch.randn(2, 4, 2),
        torch.randn(2, 4, 1),
        torch.arange(4).expand(2, 4),
    )


@FAMILY.entry("made", refusal="as in MADE")
def made():
    class ML(nn.Linear):
        mask: torch.Tensor

        def __init__(self, i, o, m):
            super().__init__(i, o)
            self.register_buffer("mask", m)

        def forward(self, x):
            return F.linear(x, self.mask * self.weight, self.bias)

    i = torch.arange(1, 7)
    h = torch.arange(12) % 5 + 1
    return nn.Sequential(
        ML(6, 12, (h[:, None] >= i).float()),
        nn.ReLU(),
        ML(12, 12, (h[:, None] >= h).float()),
        nn.ReLU(),
        ML(12, 6, (i[:, None] > h).float()),
    ), (torch.randn(3, 6),)


@FAMILY.entry("actnorm glow")
def actnorm_glow():
    class Act(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.s = nn.Parameter(torch.ones(d) * 1.1)
            self.b = nn.Parameter(torch.zeros(d) + 0.1)

        def forward(self, x):
            return (x + self.b) * self.s

    class Inv(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.W = nn.Parameter(torch.linalg.qr(torch.randn(d, d))[0])

        def forward(self, x):
            return x @ self.W, torch.linalg.slogdet(self.W)[1]

    class Co(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = mlp(3, 16, 6)

        def forward(self, x):
            a, b = x.chunk(2, -1)
            scale, t = self.n(a).chunk(2, -1)
            z = torch.sigmoid(scale + 2)
            return torch.cat([a, b * z + t], -1), z.log().sum(-1)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.st = nn.ModuleList([Act(6), Inv(6), Co(), Act(6), Inv(6), Co()])

        def forward(self, x):
            ld = 0
            for m in self.st:
                x = m(x)
                if isinstance(x, tuple):
                    x, part = x
                    ld = ld + part
            return x, ld

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("lora module")
def lora_module():
    class L(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.base = nn.Linear(i, o)
            self.base.weight.requires_grad_(False)
            self.A, self.B = nn.Linear(i, 2, bias=False), nn.Linear(2, o, bias=False)

        def forward(self, x):
            return self.base(x) + 0.5 * self.B(self.A(x))

    return nn.Sequential(L(6, 16), nn.ReLU(), L(16, 3)), (torch.randn(3, 6),)


@FAMILY.entry("lora raw")
def lora_raw():
    class L(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.base = nn.Linear(i, o)
            self.A = nn.Parameter(torch.randn(2, i))
            self.B = nn.Parameter(torch.randn(o, 2))

        def forward(self, x):
            return self.base(x) + (x @ self.A.T) @ self.B.T

    return nn.Sequential(L(6, 16), nn.ReLU(), L(16, 3)), (torch.randn(3, 6),)


@FAMILY.entry("lora merged weight")
def lora_merged_weight():
    class L(nn.Linear):
        def __init__(self, i, o):
            super().__init__(i, o)
            self.A = nn.Parameter(torch.randn(2, i))
            self.B = nn.Parameter(torch.randn(o, 2))

        def forward(self, x):
            return F.linear(x, self.weight + self.B @ self.A, self.bias)

    return nn.Sequential(L(6, 16), nn.ReLU(), L(16, 3)), (torch.randn(3, 6),)


@FAMILY.entry("dora")
def dora():
    class L(nn.Linear):
        def __init__(self, i, o):
            super().__init__(i, o)
            self.A = nn.Parameter(torch.randn(2, i))
            self.B = nn.Parameter(torch.randn(o, 2))
            self.m = nn.Parameter(torch.ones(o, 1))

        def forward(self, x):
            w = self.weight + self.B @ self.A
            return F.linear(x, self.m * w / w.norm(dim=1, keepdim=True), self.bias)

    return nn.Sequential(L(6, 16), nn.ReLU(), L(16, 3)), (torch.randn(3, 6),)


@FAMILY.entry("weight norm new")
def weight_norm_new():
    from torch.nn.utils.parametrizations import weight_norm as wn

    return nn.Sequential(wn(nn.Linear(6, 16)), nn.ReLU(), wn(nn.Linear(16, 3))), (torch.randn(3, 6),)


@FAMILY.entry("spectral")
def spectral():
    from torch.nn.utils.parametrizations import spectral_norm as sn

    return nn.Sequential(sn(nn.Linear(6, 16)), nn.LeakyReLU(0.2), sn(nn.Linear(16, 1))), (torch.randn(3, 6),)


@FAMILY.entry("orthogonal")
def orthogonal():
    from torch.nn.utils.parametrizations import orthogonal as o

    return nn.Sequential(o(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 1)), (torch.randn(3, 6),)


@FAMILY.entry("binary weight ste")
def binary_weight_ste():
    class L(nn.Linear):
        def forward(self, x):
            w = self.weight + (self.weight.sign() - self.weight).detach()
            return F.linear(x, w, self.bias)

    return nn.Sequential(L(6, 16), nn.ReLU(), L(16, 3)), (torch.randn(3, 6),)


@FAMILY.entry("fake quant weight")
def fake_quant_weight():
    class L(nn.Linear):
        def forward(self, x):
            sc = self.weight.abs().max() / 127
            return F.linear(x, (self.weight / sc).round() * sc, self.bias)

    return nn.Sequential(L(6, 16), nn.ReLU(), L(16, 3)), (torch.randn(3, 6),)


@FAMILY.entry("weight standardised")
def weight_standardised():
    class C(nn.Conv2d):
        def forward(self, x):
            w = self.weight
            w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
            return F.conv2d(x, w, self.bias)

    return nn.Sequential(C(3, 8, 3), nn.ReLU(), C(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2)), (
        torch.randn(2, 3, 6, 6),
    )


@FAMILY.entry("icnn", refusal=r"w:")
def icnn():
    def f(self, x):
        z = F.softplus(self.a(x))
        z = F.softplus(F.linear(z, F.softplus(self.w)) + self.b(x))
        return F.linear(z, F.softplus(self.v)) + self.c(x)

    return Written(
        f,
        a=nn.Linear(4, 8),
        b=nn.Linear(4, 8),
        c=nn.Linear(4, 1),
        w=nn.Parameter(torch.randn(8, 8)),
        v=nn.Parameter(torch.randn(1, 8)),
    ), (torch.randn(3, 4),)


@FAMILY.entry("monotonic exp", refusal=r"w:")
def monotonic_exp():
    def f(self, x):
        return F.linear(torch.tanh(F.linear(x, self.w.exp(), self.b)), self.v.exp())

    return Written(
        f,
        w=nn.Parameter(torch.randn(8, 4)),
        b=nn.Parameter(torch.randn(8)),
        v=nn.Parameter(torch.randn(1, 8)),
    ), (torch.randn(3, 4),)


@FAMILY.entry("tensor train", refusal=r"g2:")
def tensor_train():
    def f(self, x):
        y = torch.einsum("bij,ira->bjra", x.view(-1, 2, 3), self.g1)
        y = torch.einsum("bjra,rjc->bac", y, self.g2).flatten(1)
        return self.o(F.relu(y))

    return Written(
        f, g1=nn.Parameter(torch.randn(2, 3, 4)), g2=nn.Parameter(torch.randn(3, 3, 4)), o=nn.Linear(16, 2)
    ), (torch.randn(3, 6),)


@FAMILY.entry("kron layer", refusal=r"a:")
def kron_layer():
    def f(self, x):
        return self.o(F.relu(x @ torch.kron(self.a, self.b)))

    return Written(
        f, a=nn.Parameter(torch.randn(2, 4)), b=nn.Parameter(torch.randn(3, 2)), o=nn.Linear(8, 2)
    ), (torch.randn(3, 6),)


@FAMILY.entry("circulant fft")
def circulant_fft():
    def f(self, x):
        return self.o(F.relu(torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(self.c), n=8)))

    return Written(f, c=nn.Parameter(torch.randn(8)), o=nn.Linear(8, 2)), (torch.randn(3, 8),)


@FAMILY.entry("toeplitz", refusal=r"t:")
def toeplitz():
    def f(self, x):
        i = torch.arange(8)
        W = self.t[i[:, None] - i + 7]
        return self.o(F.relu(x @ W))

    return Written(f, t=nn.Parameter(torch.randn(15)), o=nn.Linear(8, 2)), (torch.randn(3, 8),)


@FAMILY.entry("condconv", refusal=r"w:")
def condconv():
    def f(self, x):
        r = torch.sigmoid(self.r(x.mean((2, 3))))
        w = torch.einsum("be,eoihw->boihw", r, self.w)
        b = len(x)
        y = F.conv2d(x.reshape(1, -1, 6, 6), w.flatten(0, 1), groups=b, padding=1).view(b, 8, 6, 6)
        return self.o(F.relu(y).mean((2, 3)))

    return Written(f, r=nn.Linear(3, 4), w=nn.Parameter(torch.randn(4, 8, 3, 3, 3)), o=nn.Linear(8, 2)), (
        torch.randn(2, 3, 6, 6),
    )


@FAMILY.entry("dynamic filter")
def dynamic_filter():
    def f(self, x):
        k = self.k(x.mean((2, 3))).view(-1, 1, 3, 3)
        b = len(x)
        y = F.conv2d(x.view(1, -1, 6, 6), k, groups=b * 3, padding=1).view(b, 3, 6, 6)
        return self.o(F.relu(self.c(y)).mean((2, 3)))

    return Written(f, k=nn.Linear(3, 27), c=nn.Conv2d(3, 8, 1), o=nn.Linear(8, 2)), (torch.randn(2, 3, 6, 6),)
