"""What fields other than vision and language use."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("domains")


@FAMILY.entry("siren")
def siren():
    def f(self, x):
        return self.c(torch.sin(30 * self.b(torch.sin(30 * self.a(x)))))

    return Written(f, a=nn.Linear(2, 16), b=nn.Linear(16, 16), c=nn.Linear(16, 1)), (torch.randn(3, 2),)


@FAMILY.entry("nerf posenc", refusal=r"one feature")
def nerf_posenc():
    def f(self, x):
        e = torch.cat([g(2**i * math.pi * x) for i in range(3) for g in (torch.sin, torch.cos)], -1)
        h = F.relu(self.a(e))
        h = F.relu(self.b(torch.cat([h, e], -1)))
        return torch.sigmoid(self.c(h)), F.relu(self.d(h))

    return Written(f, a=nn.Linear(18, 16), b=nn.Linear(34, 16), c=nn.Linear(16, 3), d=nn.Linear(16, 1)), (
        torch.randn(4, 3),
    )


@FAMILY.entry("deq iteration")
def deq_iteration():
    def f(self, x):
        z = torch.zeros(len(x), 8)
        u = self.u(x)
        for _ in range(4):
            z = torch.tanh(self.w(z) + u)
        return self.o(z)

    return Written(f, u=nn.Linear(6, 8), w=nn.Linear(8, 8), o=nn.Linear(8, 2)), (torch.randn(3, 6),)


@FAMILY.entry("factorization machine")
def factorization_machine():
    def f(self, i):
        v = self.v(i)
        return self.w(i).sum((1, 2)) + 0.5 * (v.sum(1) ** 2 - (v**2).sum(1)).sum(-1)

    return Written(f, v=nn.Embedding(11, 4), w=nn.Embedding(11, 1)), (torch.randint(11, (3, 4)),)


@FAMILY.entry("deepfm")
def deepfm():
    def f(self, i):
        v = self.v(i)
        fm = 0.5 * (v.sum(1) ** 2 - (v**2).sum(1))
        return self.o(torch.cat([fm, self.d(v.flatten(1))], -1))

    return Written(f, v=nn.Embedding(11, 4), d=mlp(16, 16, 4), o=nn.Linear(8, 1)), (
        torch.randint(11, (3, 4)),
    )


@FAMILY.entry("dcn cross")
def dcn_cross():
    def f(self, x):
        x0 = x
        for layer in self.l:
            x = x0 * layer(x) + x
        return self.o(x)

    return Written(f, l=nn.ModuleList([nn.Linear(6, 6) for _ in range(3)]), o=nn.Linear(6, 1)), (
        torch.randn(3, 6),
    )


@FAMILY.entry("s4d kernel", refusal=r"C:")
def s4d_kernel():
    def f(self, u):
        u = self.i(u)
        A = -torch.exp(self.la) + 1j * self.im
        dt = torch.exp(self.ldt)
        K = (
            2
            * torch.einsum(
                "hn,hnl->hl",
                self.C * (torch.exp(A * dt[:, None]) - 1) / A,
                torch.exp((A * dt[:, None])[..., None] * torch.arange(6)),
            ).real
        )
        y = (
            torch.fft.irfft(torch.fft.rfft(u.mT, n=12) * torch.fft.rfft(K, n=12), n=12)[..., :6]
            + u.mT * self.D[:, None]
        )
        return self.o(F.gelu(y.mT))

    return Written(
        f,
        i=nn.Linear(3, 4),
        la=nn.Parameter(torch.randn(4, 5)),
        im=nn.Parameter(torch.randn(4, 5)),
        ldt=nn.Parameter(torch.randn(4) - 2),
        C=nn.Parameter(torch.randn(4, 5, dtype=torch.cfloat)),
        D=nn.Parameter(torch.randn(4)),
        o=nn.Linear(4, 2),
    ), (torch.randn(2, 6, 3),)


@FAMILY.entry("lru", refusal=r"Ci:")
def lru():
    def f(self, x):
        lam = torch.exp(-torch.exp(self.nu) + 1j * torch.exp(self.th))
        B = self.Br + 1j * self.Bi
        h = torch.zeros(len(x), 6, dtype=torch.cfloat)
        ys = []
        for t in range(x.shape[1]):
            h = lam * h + x[:, t].to(torch.cfloat) @ B.T
            ys.append((h @ (self.Cr + 1j * self.Ci).T).real)
        return self.o(F.gelu(torch.stack(ys, 1)))

    return Written(
        f,
        nu=nn.Parameter(torch.randn(6)),
        th=nn.Parameter(torch.randn(6)),
        Br=nn.Parameter(torch.randn(6, 4)),
        Bi=nn.Parameter(torch.randn(6, 4)),
        Cr=nn.Parameter(torch.randn(4, 6)),
        Ci=nn.Parameter(torch.randn(4, 6)),
        o=nn.Linear(4, 2),
    ), (torch.randn(2, 5, 4),)


@FAMILY.entry("mixture density")
def mixture_density():
    def f(self, x):
        h = torch.tanh(self.a(x))
        return self.p(h).log_softmax(-1), self.m(h), self.s(h).exp()

    return Written(f, a=nn.Linear(4, 8), p=nn.Linear(8, 3), m=nn.Linear(8, 3), s=nn.Linear(8, 3)), (
        torch.randn(3, 4),
    )


@FAMILY.entry("involution")
def involution():
    def f(self, x):
        h = self.i(x)
        k = self.s(F.relu(self.r(h))).view(-1, 1, 9, 36)
        u = F.unfold(h, 3, padding=1).view(-1, 8, 9, 36)
        return self.o(F.relu((k * u).sum(2)).mean(-1))

    return Written(f, i=nn.Conv2d(3, 8, 1), r=nn.Conv2d(8, 4, 1), s=nn.Conv2d(4, 9, 1), o=nn.Linear(8, 2)), (
        torch.randn(2, 3, 6, 6),
    )


@FAMILY.entry("cbam")
def cbam():
    def f(self, x):
        h = F.relu(self.c(x))
        a = torch.sigmoid(self.m(h.mean((2, 3))) + self.m(h.amax((2, 3))))
        h = h * a[..., None, None]
        b = torch.sigmoid(self.s(torch.cat([h.mean(1, keepdim=True), h.amax(1, keepdim=True)], 1)))
        return self.o((h * b).mean((2, 3)))

    return Written(
        f, c=nn.Conv2d(3, 8, 3), m=mlp(8, 4, 8), s=nn.Conv2d(2, 1, 3, padding=1), o=nn.Linear(8, 2)
    ), (torch.randn(2, 3, 6, 6),)


@FAMILY.entry("frn tlu")
def frn_tlu():
    def f(self, x):
        h = self.c(x)
        h = h * torch.rsqrt(h.pow(2).mean((2, 3), keepdim=True) + 1e-6)
        h = torch.max(self.g * h + self.b, self.t)
        return self.o(h.mean((2, 3)))

    return Written(
        f,
        c=nn.Conv2d(3, 8, 3),
        g=nn.Parameter(torch.ones(1, 8, 1, 1)),
        b=nn.Parameter(torch.zeros(1, 8, 1, 1)),
        t=nn.Parameter(torch.zeros(1, 8, 1, 1)),
        o=nn.Linear(8, 2),
    ), (torch.randn(2, 3, 6, 6),)


@FAMILY.entry("gdn", refusal=r"g:")
def gdn():
    def f(self, x):
        h = self.c(x)
        n = torch.sqrt(F.conv2d(h**2, self.g.abs()[:, :, None, None], self.b))
        return self.o((h / n).mean((2, 3)))

    return Written(
        f,
        c=nn.Conv2d(3, 8, 3),
        g=nn.Parameter(torch.eye(8) * 0.1),
        b=nn.Parameter(torch.ones(8)),
        o=nn.Linear(8, 2),
    ), (torch.randn(2, 3, 6, 6),)


@FAMILY.entry("evonorm")
def evonorm():
    def f(self, x):
        h = self.c(x)
        h = (
            h
            * torch.sigmoid(self.v * h)
            / torch.sqrt(h.view(2, 2, 4, 4, 4).var((2, 3, 4), keepdim=True) + 1e-5)
            .expand(2, 2, 4, 4, 4)
            .reshape(2, 8, 4, 4)
        )
        return self.o(h.mean((2, 3)))

    return Written(f, c=nn.Conv2d(3, 8, 3), v=nn.Parameter(torch.ones(1, 8, 1, 1)), o=nn.Linear(8, 2)), (
        torch.randn(2, 3, 6, 6),
    )


@FAMILY.entry("adaln")
def adaln():
    def f(self, x, c):
        x = self.i(x)
        sh, sc, g = self.m(F.silu(self.c(c))).chunk(3, -1)
        h = F.layer_norm(x, (8,)) * (1 + sc) + sh
        return self.o(x + g * self.f(h))

    return Written(
        f,
        i=nn.Linear(4, 8),
        c=nn.Linear(3, 8),
        m=nn.Linear(8, 24),
        f=mlp(8, 16, 8, nn.GELU),
        o=nn.Linear(8, 4),
    ), (torch.randn(3, 4), torch.randn(3, 3))
