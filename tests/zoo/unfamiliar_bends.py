"""Nonlinearities as people write them: in place, by choices, by powers and quotients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .built import IMAGES, SERIES, conv, entries, linear, perceptron, vector
from .entry import Family

FAMILY = Family("bends")
net = entries(FAMILY)


@net("written into slices of a buffer", a=linear(6, 4), b=linear(6, 4), head=linear(8, 2))
def _(n, x):
    h = torch.empty(4, 8)
    h[:, :4] = n.a(x).relu()
    h[:, 4:] = n.b(x)
    h[:, 4:].sigmoid_()
    return n.head(h)


@net("out arguments", a=linear(6, 8), b=linear(6, 8), head=linear(8, 2))
def _(n, x):
    with torch.no_grad():
        h = torch.empty(4, 8)
        torch.add(n.a(x), n.b(x), out=h)
        r = torch.empty(4, 8)
        torch.tanh(h, out=r)
    return n.head(r)


@net("activation in place on a view of the sum", a=linear(6, 8), b=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    h += n.b(x)
    h.view(4, 2, 4)[:, 0].clamp_(min=0)
    h.view(4, 2, 4)[:, 1].tanh_()
    return n.head(h)


@net("a half is activated in place", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x).clone()
    F.relu_(h[:, :4])
    return n.head(h)


@net("masked rows go through another layer", a=linear(6, 8), b=linear(8, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    m = x[:, 0] > 0
    y = h.clone()
    y[m] = F.silu(n.b(h[m]))
    return n.head(y)


@net("index_add of activated rows", a=linear(6, 8), b=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    return n.head(h.index_add(0, torch.tensor([0, 2]), F.gelu(n.b(x[:2]))))


@net("relu as half of x plus abs", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    return n.head((h + h.abs()) / 2)


@net("leaky relu by where and 0.1", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    return n.head(torch.where(h.sign() > 0, h, 0.1 * h))


@net("step through bool to float", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    return n.head((n.a(x) > 0).float())


@net("softmax by hand over features", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    e = (h - h.max(-1, keepdim=True).values).exp()
    return n.head(e / e.sum(-1, keepdim=True))


@net("gaussian bump", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    return n.head(torch.exp(-h * h))


@net("xsinx, snake", a=linear(6, 8), al=vector(8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    return n.head(h + (n.al * h).sin() ** 2 / (n.al.abs() + 1e-3))


@net(
    "power of a parameter exponent",
    a=linear(6, 8),
    p=lambda: nn.Parameter(torch.tensor(2.0)),
    head=linear(8, 2),
)
def _(n, x):
    return n.head(n.a(x).abs() ** n.p)


@net("gem pooling", IMAGES, c=conv(8, 8, 3), p=lambda: nn.Parameter(torch.tensor(3.0)), head=linear(8, 2))
def _(n, x):
    return n.head(n.c(x).clamp(min=1e-6).pow(n.p).mean((2, 3)).pow(1 / n.p))


@net("serf-like of log1p and erf", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    return n.head(h * torch.erf(torch.log1p(h.exp())))


@net("symlog", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    return n.head(h.sign() * torch.log1p(h.abs()))


@net("k winners take all", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    t = h.kthvalue(5, -1, keepdim=True).values
    return n.head(h * (h >= t))


@net("top-k scattered back", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    v, i = h.topk(3, -1)
    return n.head(torch.zeros_like(h).scatter(-1, i, v))


@net("lateral inhibition", a=linear(6, 8), inh=lambda: nn.Parameter(torch.eye(8) * 0.5), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    return n.head(h - torch.relu(h @ n.inh))


@net("local response", IMAGES, c=conv(8, 8, 3), head=linear(8, 2))
def _(n, x):
    return n.head(F.local_response_norm(n.c(x), 3).mean((2, 3)))


@net("min-max scaled hidden state", a=linear(6, 8), dyn=perceptron(8, 12, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    for _ in range(2):
        lo, hi = h.amin(-1, keepdim=True), h.amax(-1, keepdim=True)
        h = (h - lo) / (hi - lo + 1e-5)
        h = n.dyn(h) + h
    return n.head(h)


@net(
    "hidden clamped by a learnt bound",
    a=linear(6, 8),
    b=lambda: nn.Parameter(torch.ones(8)),
    head=linear(8, 2),
)
def _(n, x):
    return n.head(torch.clamp(n.a(x), min=-n.b, max=n.b))


@net("differences of a time series then sign", SERIES, a=linear(8, 8), head=linear(8, 2))
def _(n, x):
    return n.head(n.a(x).diff(dim=1).sign())


@net("cumulative maximum over time", SERIES, a=linear(8, 8), head=linear(8, 2))
def _(n, x):
    return n.head(n.a(x).cummax(1).values)


@net("product over time", SERIES, a=linear(8, 8), head=linear(8, 2))
def _(n, x):
    return n.head(n.a(x).prod(1))


@net("cumulative product of one minus sigmoid, stick breaking", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    s = n.a(x).sigmoid()
    return n.head(s * F.pad((1 - s).cumprod(-1)[:, :-1], (1, 0), value=1.0))


@net("norm of groups as features", a=linear(6, 8), head=linear(4, 2))
def _(n, x):
    return n.head(n.a(x).view(4, 4, 2).norm(dim=-1))


@net("complex modulus of pairs", a=linear(6, 8), head=linear(4, 2))
def _(n, x):
    return n.head(torch.view_as_complex(n.a(x).view(4, 4, 2)).abs())


@net("angle of pairs", a=linear(6, 8), head=linear(4, 2))
def _(n, x):
    h = n.a(x).view(4, 4, 2)
    return n.head(torch.atan2(h[..., 0], h[..., 1]))


@net("rotation by a predicted angle", a=linear(6, 4), v=linear(6, 8), head=linear(8, 2))
def _(n, x):
    t = n.a(x)
    p, q = n.v(x).chunk(2, -1)
    return n.head(torch.cat([p * t.cos() - q * t.sin(), p * t.sin() + q * t.cos()], -1))


@net("outer product with itself", a=linear(6, 4), head=linear(16, 2))
def _(n, x):
    h = n.a(x)
    return n.head(torch.einsum("bi,bj->bij", h, h).flatten(1))


@net("gram matrix of features", SERIES, a=linear(8, 6), head=linear(36, 2))
def _(n, x):
    h = n.a(x)
    return n.head((h.mT @ h).flatten(1))


@net("determinant features", a=linear(6, 9), head=linear(1, 2))
def _(n, x):
    return n.head(torch.linalg.det(n.a(x).view(4, 3, 3)).unsqueeze(-1))


@net("matrix exponential", a=linear(6, 9), head=linear(9, 2))
def _(n, x):
    return n.head(torch.linalg.matrix_exp(n.a(x).view(4, 3, 3)).flatten(1))


@net("bessel basis", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    return n.head(torch.special.bessel_j0(n.a(x)))


@net("fake quantised activations", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    return n.head(torch.fake_quantize_per_tensor_affine(n.a(x), 0.1, 0, -128, 127))


@net(
    "activations quantised with a learnt step",
    a=linear(6, 8),
    s=lambda: nn.Parameter(torch.tensor(0.1)),
    head=linear(8, 2),
)
def _(n, x):
    h = n.a(x) / n.s
    q = h + (h.clamp(-8, 7).round() - h).detach()
    return n.head(q * n.s)


@net("abs-max int8 quantisation of activations", a=linear(6, 8), head=linear(8, 2))
def _(n, x):
    h = n.a(x)
    s = 127 / h.abs().amax(-1, keepdim=True).clamp(min=1e-5)
    return n.head(h + ((h * s).round().clamp(-128, 127) / s - h).detach())
