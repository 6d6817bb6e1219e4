"""Recurrences by hand, memories, trees and tokens of numbers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("remembering")


@FAMILY.entry("pointer net")
def pointer_net():
    def f(self, x):
        e = torch.tanh(self.e(x))
        q = e.mean(1)
        u = self.v(torch.tanh(self.a(e) + self.b(q)[:, None])).squeeze(-1)
        return u.log_softmax(-1)

    return Written(f, e=nn.Linear(3, 8), a=nn.Linear(8, 8), b=nn.Linear(8, 8), v=nn.Linear(8, 1)), (
        torch.randn(2, 5, 3),
    )


@FAMILY.entry("ntm read", refusal=r"one feature")
def ntm_read():
    def f(self, x):
        h = torch.tanh(self.c(x))
        k = self.k(h)
        b = F.softplus(self.b(h))
        w = (b * F.cosine_similarity(k[:, None], self.mem, dim=-1)).softmax(-1)
        return self.o(torch.cat([h, w @ self.mem], -1))

    return Written(
        f,
        c=nn.Linear(4, 8),
        k=nn.Linear(8, 6),
        b=nn.Linear(8, 1),
        mem=nn.Parameter(torch.randn(5, 6)),
        o=nn.Linear(14, 3),
    ), (torch.randn(2, 4),)


@FAMILY.entry("highway")
def highway():
    def f(self, x):
        x = self.i(x)
        for h, t in zip(self.h, self.t, strict=True):
            g = torch.sigmoid(t(x))
            x = g * F.relu(h(x)) + (1 - g) * x
        return self.o(x)

    return Written(
        f,
        i=nn.Linear(4, 8),
        h=nn.ModuleList([nn.Linear(8, 8) for _ in range(2)]),
        t=nn.ModuleList([nn.Linear(8, 8) for _ in range(2)]),
        o=nn.Linear(8, 2),
    ), (torch.randn(3, 4),)


@FAMILY.entry("lstm by hand fused")
def lstm_by_hand_fused():
    def f(self, x):
        h = c = torch.zeros(len(x), 8)
        for t in range(x.shape[1]):
            i, g, ff, o = (self.x(x[:, t]) + self.h(h)).chunk(4, -1)
            c = torch.sigmoid(ff) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.o(h)

    return Written(f, x=nn.Linear(4, 32), h=nn.Linear(8, 32), o=nn.Linear(8, 2)), (torch.randn(2, 5, 4),)


@FAMILY.entry("conv lstm")
def conv_lstm():
    def f(self, x):
        h = c = torch.zeros(2, 4, 5, 5)
        for t in range(3):
            i, g, ff, o = self.c(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = torch.sigmoid(ff) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.o(h.mean((2, 3)))

    return Written(f, c=nn.Conv2d(7, 16, 3, padding=1), o=nn.Linear(4, 2)), (torch.randn(2, 3, 3, 5, 5),)


@FAMILY.entry("echo state")
def echo_state():
    def f(self, x):
        h = torch.zeros(len(x), 8)
        for t in range(4):
            h = torch.tanh(x[:, t] @ self.wi + h @ self.wr)
        return self.o(h)

    return Written(f, wi=torch.randn(3, 8), wr=torch.randn(8, 8) * 0.1, o=nn.Linear(8, 2)), (
        torch.randn(2, 4, 3),
    )


@FAMILY.entry("nalu")
def nalu():
    def f(self, x):
        W = torch.tanh(self.w) * torch.sigmoid(self.m)
        a = x @ W
        g = torch.sigmoid(x @ self.g)
        return g * a + (1 - g) * torch.exp(torch.log(x.abs() + 1e-7) @ W)

    return Written(
        f,
        w=nn.Parameter(torch.randn(4, 3)),
        m=nn.Parameter(torch.randn(4, 3)),
        g=nn.Parameter(torch.randn(4, 3)),
    ), (torch.randn(3, 4),)


@FAMILY.entry("prototypes")
def prototypes():
    def f(self, x, p):
        return -(torch.cdist(self.e(x), self.e(p)) ** 2)

    return Written(f, e=mlp(4, 8, 6)), (torch.randn(3, 4), torch.randn(2, 4))


@FAMILY.entry("soft tree")
def soft_tree():
    def f(self, x):
        d = torch.sigmoid(self.d(x))
        p = torch.stack(
            [
                d[:, 0] * d[:, 1],
                d[:, 0] * (1 - d[:, 1]),
                (1 - d[:, 0]) * d[:, 2],
                (1 - d[:, 0]) * (1 - d[:, 2]),
            ],
            -1,
        )
        return p @ self.l

    return Written(f, d=nn.Linear(4, 3), l=nn.Parameter(torch.randn(4, 2))), (torch.randn(3, 4),)


@FAMILY.entry("ft transformer tokens")
def ft_transformer_tokens():
    def f(self, x):
        t = x[..., None] * self.w + self.b
        t = torch.cat([self.cls.expand(len(x), 1, 8), t], 1)
        return self.o(self.l(t)[:, 0])

    return Written(
        f,
        w=nn.Parameter(torch.randn(5, 8)),
        b=nn.Parameter(torch.randn(5, 8)),
        cls=nn.Parameter(torch.randn(1, 1, 8)),
        l=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0),
        o=nn.Linear(8, 2),
    ), (torch.randn(3, 5),)


@FAMILY.entry("fourier features learned", refusal=r"B:")
def fourier_features_learned():
    def f(self, x):
        z = 2 * math.pi * x @ self.B
        return self.o(F.relu(self.a(torch.cat([z.sin(), z.cos()], -1))))

    return Written(f, B=nn.Parameter(torch.randn(3, 8)), a=nn.Linear(16, 8), o=nn.Linear(8, 2)), (
        torch.randn(3, 3),
    )


@FAMILY.entry("random fourier buffer")
def random_fourier_buffer():
    def f(self, x):
        z = x @ self.B
        return self.o(F.relu(self.a(torch.cat([z.sin(), z.cos()], -1))))

    return Written(f, B=torch.randn(3, 8), a=nn.Linear(16, 8), o=nn.Linear(8, 2)), (torch.randn(3, 3),)


@FAMILY.entry("cross attention latents")
def cross_attention_latents():
    def f(self, x):
        q = self.q(self.lat)
        return self.o((q @ self.k(x).mT).softmax(-1) @ self.v(x))

    return Written(
        f,
        lat=nn.Parameter(torch.randn(3, 8)),
        q=nn.Linear(8, 8),
        k=nn.Linear(4, 8),
        v=nn.Linear(4, 8),
        o=nn.Linear(8, 2),
    ), (torch.randn(2, 5, 4),)


@FAMILY.entry("energy attention hopfield")
def energy_attention_hopfield():
    def f(self, x):
        x = self.i(x)
        return self.o((2.0 * x @ self.p.T).softmax(-1) @ self.p)

    return Written(f, i=nn.Linear(4, 8), p=nn.Parameter(torch.randn(6, 8)), o=nn.Linear(8, 2)), (
        torch.randn(3, 4),
    )
