"""Graphs, recurrences, splines, capsules and memories."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("structured")


@FAMILY.entry("gcn mm", refusal=r"spmm|w1")
def gcn_mm():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w1 = nn.Parameter(torch.randn(6, 8))
            self.w2 = nn.Parameter(torch.randn(8, 3))

        def forward(self, x, a):
            return torch.mm(a, torch.mm(F.relu(torch.mm(a, torch.mm(x, self.w1))), self.w2))

    return M(), (torch.randn(5, 6), torch.rand(5, 5))


@FAMILY.entry("gcn layers mm", refusal=r"spmm")
def gcn_layers_mm():
    class L(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(i, o))
            self.bias = nn.Parameter(torch.zeros(o))

        def forward(self, x, a):
            return torch.spmm(a, torch.mm(x, self.weight)) + self.bias

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = L(6, 8), L(8, 3)

        def forward(self, x, a):
            return self.b(F.relu(self.a(x, a)), a).log_softmax(-1)

    return M(), (torch.randn(5, 6), torch.rand(5, 5))


@FAMILY.entry("gat", refusal=r"one feature")
def gat():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(6, 8, bias=False)
            self.s, self.t = nn.Linear(8, 1, bias=False), nn.Linear(8, 1, bias=False)
            self.o = nn.Linear(8, 3)

        def forward(self, x, adj):
            h = self.w(x)
            e = F.leaky_relu(self.s(h) + self.t(h).T, 0.2).masked_fill(adj == 0, -1e9)
            return self.o(F.elu(e.softmax(-1) @ h))

    return M(), (torch.randn(5, 6), (torch.rand(5, 5) > 0.3).float())


@FAMILY.entry("gin index add")
def gin_index_add():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.eps = nn.Parameter(torch.zeros(1))
            self.m = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
            self.o = nn.Linear(6, 2)

        def forward(self, x, i, j):
            for _ in range(2):
                x = self.m((1 + self.eps) * x + torch.zeros_like(x).index_add_(0, j, x[i]))
            return self.o(x)

    return M(), (torch.randn(5, 6), torch.tensor([0, 1, 2]), torch.tensor([3, 4, 0]))


@FAMILY.entry("min gru")
def min_gru():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.z, self.h = nn.Linear(6, 8), nn.Linear(6, 8)
            self.o = nn.Linear(8, 2)

        def forward(self, x):
            z = torch.sigmoid(self.z(x))
            c = self.h(x)
            h = torch.zeros(len(x), 8)
            for t in range(x.shape[1]):
                h = (1 - z[:, t]) * h + z[:, t] * c[:, t]
            return self.o(h)

    return M(), (torch.randn(2, 5, 6),)


@FAMILY.entry("elman by hand")
def elman_by_hand():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.i, self.h, self.o = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            h = torch.zeros(len(x), 8)
            for t in range(x.shape[1]):
                h = torch.tanh(self.i(x[:, t]) + self.h(h))
            return self.o(h)

    return M(), (torch.randn(2, 5, 6),)


@FAMILY.entry("kan rbf")
def kan_rbf():
    class L(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.register_buffer("g", torch.linspace(-1, 1, 5))
            self.c = nn.Parameter(torch.randn(i * 5, o) * 0.1)
            self.b = nn.Linear(i, o)

        def forward(self, x):
            r = torch.exp(-(((x[..., None] - self.g) / 0.5) ** 2)).flatten(-2)
            return r @ self.c + self.b(F.silu(x))

    return nn.Sequential(L(6, 8), L(8, 3)), (torch.randn(3, 6),)


@FAMILY.entry("rbf net")
def rbf_net():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(6, 4)
            self.c = nn.Parameter(torch.randn(8, 4))
            self.o = nn.Linear(8, 2)

        def forward(self, x):
            return self.o(torch.exp(-(torch.cdist(self.a(x), self.c) ** 2)))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("capsule")
def capsule():
    def squash(v):
        n = v.norm(dim=-1, keepdim=True)
        return n**2 / (1 + n**2) * v / n

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Linear(6, 16)
            self.W = nn.Parameter(torch.randn(4, 3, 4, 4) * 0.5)

        def forward(self, x):
            u = squash(self.p(x).view(-1, 4, 4))
            uh = torch.einsum("bik,ijkl->bijl", u, self.W)
            b = torch.zeros(len(x), 4, 3)
            for _ in range(2):
                v = squash((b.softmax(-1)[..., None] * uh).sum(1))
                b = b + (uh * v[:, None]).sum(-1)
            return v.norm(dim=-1)

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("memory net")
def memory_net():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.A, self.B, self.C = nn.Embedding(11, 8), nn.Embedding(11, 8), nn.Embedding(11, 8)
            self.o = nn.Linear(8, 11)

        def forward(self, m, q):
            u = self.B(q).sum(1)
            for _ in range(2):
                p = (self.A(m).sum(2) * u[:, None]).sum(-1).softmax(-1)
                u = u + (p[..., None] * self.C(m).sum(2)).sum(1)
            return self.o(u)

    return M(), (torch.randint(11, (2, 4, 3)), torch.randint(11, (2, 3)))


@FAMILY.entry("rwkv like shift")
def rwkv_like_shift():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu = nn.Parameter(torch.rand(6))
            self.k, self.v, self.r = (nn.Linear(6, 6, bias=False) for _ in range(3))
            self.o = nn.Linear(6, 3)

        def forward(self, x):
            p = F.pad(x, (0, 0, 1, -1))
            z = x * self.mu + p * (1 - self.mu)
            return self.o(torch.sigmoid(self.r(z)) * self.v(F.relu(self.k(z)) ** 2))

    return M(), (torch.randn(2, 5, 6),)


@FAMILY.entry("linear attention elu")
def linear_attention_elu():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
            kv = torch.einsum("bnd,bne->bde", k, v)
            z = 1 / torch.einsum("bnd,bd->bn", q, k.sum(1))
            return self.o(torch.einsum("bnd,bde,bn->bne", q, kv, z))

    return M(), (torch.randn(2, 5, 8),)


@FAMILY.entry("retention")
def retention():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
            self.g = nn.GroupNorm(2, 8)

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            n = x.shape[1]
            i = torch.arange(n)
            D = (0.9 ** (i[:, None] - i).clamp(min=0).float()).tril()
            y = (q @ k.mT * D) @ v
            return self.o(self.g(y.flatten(0, 1)).view_as(y))

    return M(), (torch.randn(2, 5, 8),)


@FAMILY.entry("egnn")
def egnn():
    def f(self, h, x):
        h = self.e(h)
        n = len(h)
        d = ((x[:, None] - x[None]) ** 2).sum(-1, keepdim=True)
        m = F.silu(self.m(torch.cat([h[:, None].expand(n, n, -1), h[None].expand(n, n, -1), d], -1)))
        w = self.x(m)
        x = x + ((x[:, None] - x[None]) * w).sum(1)
        h = h + self.h(m.sum(1))
        return h, x

    return Written(f, e=nn.Linear(4, 8), m=nn.Linear(17, 8), x=mlp(8, 8, 1), h=mlp(8, 8, 8)), (
        torch.randn(5, 4),
        torch.randn(5, 3),
    )


@FAMILY.entry("schnet filter")
def schnet_filter():
    def f(self, z, x):
        h = self.z(z)
        d = torch.cdist(x, x)
        r = torch.exp(-10 * (d[..., None] - torch.linspace(0, 2, 6)) ** 2)
        w = self.b(F.softplus(self.a(r)))
        return self.o(F.softplus(self.c((self.i(h)[None] * w).sum(1))))

    return Written(
        f,
        z=nn.Embedding(9, 8),
        a=nn.Linear(6, 8),
        b=nn.Linear(8, 8),
        i=nn.Linear(8, 8),
        c=nn.Linear(8, 8),
        o=nn.Linear(8, 1),
    ), (torch.randint(9, (5,)), torch.randn(5, 3))


@FAMILY.entry("performer")
def performer():
    def f(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        a, b = (torch.exp(t @ self.w - (t**2).sum(-1, keepdim=True) / 2) for t in (q, k))
        return self.o((a @ (b.mT @ v)) / (a @ b.sum(1)[..., None]))

    return Written(
        f,
        q=nn.Linear(8, 8),
        k=nn.Linear(8, 8),
        v=nn.Linear(8, 8),
        o=nn.Linear(8, 8),
        w=torch.randn(8, 6) * 0.3,
    ), (torch.randn(2, 5, 8),)


@FAMILY.entry("linformer", refusal=r"E:")
def linformer():
    def f(self, x):
        q, k, v = self.q(x), self.E @ self.k(x), self.E @ self.v(x)
        return self.o((q @ k.mT / 8**0.5).softmax(-1) @ v)

    return Written(
        f,
        q=nn.Linear(8, 8),
        k=nn.Linear(8, 8),
        v=nn.Linear(8, 8),
        o=nn.Linear(8, 8),
        E=nn.Parameter(torch.randn(3, 5)),
    ), (torch.randn(2, 5, 8),)


@FAMILY.entry("pointnet tnet")
def pointnet_tnet():
    def f(self, x):
        t = self.t(F.relu(self.p(x)).amax(1)).view(-1, 3, 3) + torch.eye(3)
        h = F.relu(self.a(torch.bmm(x, t)))
        return self.o(self.b(h).max(1)[0])

    return Written(
        f, p=nn.Linear(3, 16), t=mlp(16, 16, 9), a=nn.Linear(3, 16), b=nn.Linear(16, 16), o=nn.Linear(16, 4)
    ), (torch.randn(2, 7, 3),)


@FAMILY.entry("pointnet pool then mlp")
def pointnet_pool_then_mlp():
    def f(self, x):
        return self.o(F.relu(self.h(self.b(F.relu(self.a(x))).max(1)[0])))

    return Written(f, a=nn.Linear(3, 16), b=nn.Linear(16, 16), h=nn.Linear(16, 8), o=nn.Linear(8, 4)), (
        torch.randn(2, 7, 3),
    )
