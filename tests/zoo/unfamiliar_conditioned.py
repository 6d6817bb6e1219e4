"""Time steps, noise, buffers and positions that layers are fed with; choices by size."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .entry import Family

FAMILY = Family("conditioned")


@FAMILY.entry("unet int time")
def unet_int_time():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.t1, self.t2 = nn.Linear(8, 32), nn.Linear(32, 16)
            self.inp, self.mid, self.out = (
                nn.Conv2d(3, 16, 3, padding=1),
                nn.Conv2d(16, 16, 3, padding=1),
                nn.Conv2d(16, 3, 3, padding=1),
            )

        def forward(self, x, t: int):
            a = t * torch.exp(-math.log(100.0) * torch.arange(4) / 4)
            e = torch.cat([a.sin(), a.cos()])
            e = self.t2(F.silu(self.t1(e)))
            h = F.silu(self.inp(x))
            h = F.silu(self.mid(h) + e[:, None, None])
            return self.out(h)

    return M(), (torch.randn(2, 3, 8, 8), 7)


@FAMILY.entry("iqn")
def iqn():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(6, 32)
            self.phi = nn.Linear(16, 32)
            self.h = nn.Linear(32, 32)
            self.o = nn.Linear(32, 4)

        def forward(self, x):
            tau = torch.rand(5)
            c = torch.cos(math.pi * torch.arange(16) * tau[:, None])
            e = F.relu(self.phi(c))
            h = F.relu(self.f(x))[:, None] * e
            return self.o(F.relu(self.h(h)))

    return M(), (torch.randn(2, 6),)


@FAMILY.entry("hyena filter", refusal=r"b:")
def hyena_filter():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 16)
            self.b = nn.Linear(16, 8)
            self.inp = nn.Linear(5, 8)
            self.o = nn.Linear(8, 2)
            self.register_buffer("pos", torch.randn(12, 3))

        def forward(self, x):
            k = self.b(torch.sin(self.a(self.pos)))  # L,8
            u = self.inp(x)  # B,L,8
            y = torch.fft.irfft(torch.fft.rfft(u, n=24, dim=1) * torch.fft.rfft(k, n=24, dim=0), n=24, dim=1)[
                :, :12
            ]
            return self.o(F.gelu(y))

    return M(), (torch.randn(2, 12, 5),)


@FAMILY.entry("maxout")
def maxout():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 32)
            self.b = nn.Linear(8, 3)

        def forward(self, x):
            return self.b(self.a(x).unflatten(-1, (8, 4)).amax(-1))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("maxout max method")
def maxout_max_method():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 32)
            self.b = nn.Linear(8, 3)

        def forward(self, x):
            return self.b(self.a(x).unflatten(-1, (8, 4)).max(-1).values)

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("maxout maximum")
def maxout_maximum():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 8)
            self.c = nn.Linear(6, 8)
            self.b = nn.Linear(8, 3)

        def forward(self, x):
            return self.b(torch.maximum(self.a(x), self.c(x)))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("sorting")
def sorting():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 8)
            self.b = nn.Linear(8, 3)

        def forward(self, x):
            return self.b(self.a(x).sort(-1).values)

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("groupsort2")
def groupsort2():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 8)
            self.b = nn.Linear(8, 3)

        def forward(self, x):
            p, q = self.a(x).chunk(2, -1)
            return self.b(torch.cat([torch.maximum(p, q), torch.minimum(p, q)], -1))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("setitem mask")
def setitem_mask():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 8)
            self.b = nn.Linear(8, 3)

        def forward(self, x):
            h = self.a(x).clone()
            h[h < 0] = 0
            return self.b(h)

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("topk sparse")
def topk_sparse():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 16)
            self.b = nn.Linear(16, 6)

        def forward(self, x):
            h = self.a(x)
            v, i = h.topk(4, -1)
            z = torch.zeros_like(h).scatter(-1, i, v)
            return self.b(z)

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("square")
def square():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 16)
            self.b = nn.Linear(16, 6)

        def forward(self, x):
            h = self.a(x)
            return self.b(h * h)

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("bilinear gate")
def bilinear_gate():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 16)
            self.c = nn.Linear(6, 16)
            self.b = nn.Linear(16, 6)

        def forward(self, x):
            return self.b(self.a(x) * self.c(x))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("fno", refusal=r"w:")
def fno():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = nn.Linear(2, 8)
            self.w = nn.Parameter(torch.randn(8, 8, 5, dtype=torch.cfloat) * 0.1)
            self.skip = nn.Conv1d(8, 8, 1)
            self.o = nn.Linear(8, 1)

        def forward(self, x):
            h = self.lift(x).transpose(1, 2)
            f = torch.fft.rfft(h)
            g = torch.zeros_like(f)
            g[..., :5] = torch.einsum("bix,iox->box", f[..., :5], self.w)
            h = F.gelu(torch.fft.irfft(g, n=h.shape[-1]) + self.skip(h))
            return self.o(h.transpose(1, 2))

    return M(), (torch.randn(2, 16, 2),)


@FAMILY.entry("fourier mixer product")
def fourier_mixer_product():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 16)
            self.b = nn.Linear(6, 16)
            self.o = nn.Linear(16, 3)

        def forward(self, x):
            p = torch.fft.rfft(self.a(x), dim=1) * torch.fft.rfft(self.b(x), dim=1)
            return self.o(torch.fft.irfft(p, n=x.shape[1], dim=1))

    return M(), (torch.randn(2, 8, 6),)


@FAMILY.entry("moe dense")
def moe_dense():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.r = nn.Linear(6, 4)
            self.e = nn.ModuleList(
                nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)) for _ in range(4)
            )
            self.o = nn.Linear(6, 2)

        def forward(self, x):
            p = self.r(x).softmax(-1)
            return self.o(F.relu(sum(p[:, i : i + 1] * e(x) for i, e in enumerate(self.e))))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("hypernet mlp")
def hypernet_mlp():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.h = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 6 * 8 + 8 * 2))

        def forward(self, x, z):
            w = self.h(z)
            a, b = w.split([48, 16], -1)
            h = F.relu(torch.bmm(x.unsqueeze(1), a.view(-1, 6, 8)))
            return torch.bmm(h, b.view(-1, 8, 2)).squeeze(1)

    return M(), (torch.randn(3, 6), torch.randn(3, 3))


@FAMILY.entry("hypernet embedding")
def hypernet_embedding():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.z = nn.Parameter(torch.randn(4))
            self.g = nn.Linear(4, 6 * 8)
            self.o = nn.Linear(8, 2)

        def forward(self, x):
            return self.o(F.relu(F.linear(x, self.g(self.z).view(8, 6))))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("neural ode")
def neural_ode():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 6))
            self.o = nn.Linear(6, 2)

        def forward(self, x):
            for i in range(3):
                t = torch.full((len(x), 1), i / 3)
                x = x + 0.3 * self.f(torch.cat([x, t], -1))
            return self.o(x)

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("set transformer")
def set_transformer():
    class MAB(nn.Module):
        def __init__(self, d=8):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

        def forward(self, X, Y):
            q, k, v = self.q(X), self.k(Y), self.v(Y)
            Q, K, V = (torch.cat(t.split(4, 2), 0) for t in (q, k, v))
            A = torch.softmax(Q.bmm(K.transpose(1, 2)) / math.sqrt(8), 2)
            out = torch.cat((Q + A.bmm(V)).split(Q.size(0) // 2, 0), 2)
            return out + F.relu(self.o(out))

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Linear(3, 8)
            self.m = MAB()
            self.I = nn.Parameter(torch.randn(1, 4, 8))
            self.p = MAB()
            self.h = nn.Linear(8, 2)

        def forward(self, x):
            h = self.e(x)
            H = self.p(self.I.repeat(len(x), 1, 1), h)
            return self.h(self.m(h, H))

    return M(), (torch.randn(2, 5, 3),)
