"""Inputs, outputs and activations that are hidden from view in one way or another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("opaque")


@FAMILY.entry("scripted helper")
def scripted_helper():
    @torch.jit.script
    def pre(x: Tensor) -> Tensor:
        return x / 255.0

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = mlp(6, 16, 3)

        def forward(self, x):
            return self.n(pre(x))

    return M(), (torch.rand(3, 6) * 255,)


@FAMILY.entry("scripted activation", refusal=r"unseen|act")
def scripted_activation():
    @torch.jit.script
    def act(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

        def forward(self, x):
            return self.b(act(self.a(x)))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("numpy roundtrip")
def numpy_roundtrip():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = mlp(6, 16, 3)

        def forward(self, x):
            return self.n(torch.from_numpy(x.detach().numpy().copy()))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("dataclass input")
def dataclass_input():
    @dataclass
    class Obs:
        image: Tensor
        state: Tensor

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Conv2d(3, 8, 3)
            self.v = nn.Linear(4, 8)
            self.o = nn.Linear(16, 2)

        def forward(self, o):
            return self.o(torch.cat([F.relu(self.c(o.image)).mean((2, 3)), F.relu(self.v(o.state))], -1))

    return M(), (Obs(torch.randn(2, 3, 6, 6), torch.randn(2, 4)),)


@FAMILY.entry("plain object input")
def plain_object_input():
    class Batch:
        def __init__(self, **k):
            self.__dict__.update(k)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = mlp(4, 8, 2)

        def forward(self, b):
            return self.n(b.x)

    return M(), (Batch(x=torch.randn(3, 4), y=torch.randn(3)),)


@FAMILY.entry("dict outputs")
def dict_outputs():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
            self.p, self.v = nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, x):
            h = self.b(x)
            return {
                "policy": torch.distributions.Categorical(logits=self.p(h), validate_args=False),
                "value": self.v(h).squeeze(-1),
                "aux": {"h": h},
            }

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("quantised ste")
def quantised_ste():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = self.a(x)
            q = h + (h.round() - h).detach()
            return self.b(q)

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("gumbel")
def gumbel():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Linear(6, 4)
            self.d = mlp(4, 16, 6)

        def forward(self, x):
            return self.d(F.gumbel_softmax(self.e(x), hard=True))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("custom autograd relu")
def custom_autograd_relu():
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x > 0)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(Fn.apply(self.a(x)))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("where relu")
def where_relu():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = self.a(x)
            return self.b(torch.where(h > 0, h, torch.zeros_like(h)))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("threshold gate other")
def threshold_gate_other():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.g, self.b = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(self.a(x) * (self.g(x) > 0))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("concat crelu")
def concat_crelu():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(16, 3)

        def forward(self, x):
            h = self.a(x)
            return self.b(torch.cat([h.clamp(min=0), (-h).clamp(min=0)], -1))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("abs activation")
def abs_activation():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(self.a(x).abs())

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("poly act")
def poly_act():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            h = self.a(x)
            return self.b(h + 0.1 * h**3)

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("sign act")
def sign_act():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(torch.sign(self.a(x)))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("complex linear", refusal=r"w:.*complex")
def complex_linear():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(6, 8, dtype=torch.cfloat)
            self.o = nn.Linear(8, 3)

        def forward(self, x):
            return self.o(F.relu(self.w(x.to(torch.cfloat)).abs()))

    return M(), (torch.randn(3, 6),)


@FAMILY.entry("pinn derivative", refusal=r"derivative")
def pinn_derivative():
    def f(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            u = self.n(x)
            (g,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return u, g

    return Written(f, n=mlp(2, 16, 1, nn.Tanh)), (torch.randn(3, 2),)


@FAMILY.entry("hamiltonian", refusal=r"derivative")
def hamiltonian():
    def f(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            (g,) = torch.autograd.grad(self.n(x).sum(), x, create_graph=True)
        q, p = g.chunk(2, -1)
        return torch.cat([p, -q], -1)

    return Written(f, n=mlp(4, 16, 1, nn.Tanh)), (torch.randn(3, 4),)


@FAMILY.entry("spiking lif")
def spiking_lif():
    class Sp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, v):
            ctx.save_for_backward(v)
            return (v > 1).to(v)

        @staticmethod
        def backward(ctx, g):
            (v,) = ctx.saved_tensors
            return g / (1 + (v - 1).abs()) ** 2

    def f(self, x):
        v = torch.zeros(len(x), 8)
        o = 0
        for _ in range(4):
            v = 0.9 * v + self.a(x)
            z = Sp.apply(v)
            v = v - z
            o = o + self.o(z)
        return o

    return Written(f, a=nn.Linear(4, 8), o=nn.Linear(8, 2)), (torch.randn(3, 4),)


@FAMILY.entry("nfsq and divide")
def nfsq_and_divide():
    def f(self, x):
        h = self.a(x)
        return self.o(h / (1 + h.abs()))

    return Written(f, a=nn.Linear(4, 8), o=nn.Linear(8, 2)), (torch.randn(3, 4),)


@FAMILY.entry("isqrt act")
def isqrt_act():
    def f(self, x):
        h = self.a(x)
        return self.o(h / torch.sqrt(1 + h * h))

    return Written(f, a=nn.Linear(4, 8), o=nn.Linear(8, 2)), (torch.randn(3, 4),)


@FAMILY.entry("logsumexp pool")
def logsumexp_pool():
    def f(self, x):
        return self.o(torch.logsumexp(self.a(x), 1))

    return Written(f, a=nn.Linear(4, 8), o=nn.Linear(8, 2)), (torch.randn(3, 5, 4),)


@FAMILY.entry("median pool")
def median_pool():
    def f(self, x):
        return self.o(self.a(x).median(1).values)

    return Written(f, a=nn.Linear(4, 8), o=nn.Linear(8, 2)), (torch.randn(3, 5, 4),)


@FAMILY.entry("sparse topk attention")
def sparse_topk_attention():
    def f(self, x):
        a = self.q(x) @ self.k(x).mT
        v = a.topk(2, -1).values[..., -1:]
        a = a.masked_fill(a < v, -1e9).softmax(-1)
        return self.o(a @ self.v(x))

    return Written(f, q=nn.Linear(8, 8), k=nn.Linear(8, 8), v=nn.Linear(8, 8), o=nn.Linear(8, 8)), (
        torch.randn(2, 5, 8),
    )
