"""Branches with shared weights that are multiplied, codes, and choices by the largest entry."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("paired")
A, B = torch.linspace(-1, 1, 18).reshape(3, 6), torch.linspace(1.5, -1, 18).reshape(3, 6).sin()


def pair(name: str, join, width: int, **about):
    """A shared encoder on two inputs, what is made of both results, and a head on that."""

    def build():
        net = Written(
            lambda net, a, b: net.head(join(net.encoder(a), net.encoder(b))),
            encoder=mlp(6, 8, 4),
            head=mlp(width, 8, 2),
        )
        return net, (A, B)

    FAMILY.add(name, build, **about)


pair("siamese distance", lambda u, v: (u - v).abs(), 4)
pair("siamese product", lambda u, v: u * v, 4)
pair("infersent", lambda u, v: torch.cat([u, v, (u - v).abs(), u * v], -1), 16)
pair("siamese squared distance", lambda u, v: (u - v) ** 2, 4)
pair("siamese pairwise distance", lambda u, v: F.pairwise_distance(u, v, keepdim=True), 1)
pair("siamese outer product", lambda u, v: (u[:, :, None] * v[:, None]).flatten(1), 16)
pair("siamese einsum", lambda u, v: torch.einsum("bi,bj->bij", u, v).flatten(1), 16)
pair("siamese bilinear pooling", lambda u, v: (u.unsqueeze(2) @ v.unsqueeze(1)).flatten(1), 16)
pair("siamese correlation", lambda u, v: u @ v.T, 3)
pair("siamese cosine", lambda u, v: F.cosine_similarity(u, v).unsqueeze(1), 1)
pair("siamese addcmul", lambda u, v: torch.addcmul(u, u, v), 4)
pair("siamese quotient", lambda u, v: u / (1 + v.abs()), 4)
pair("siamese difference", lambda u, v: u - v, 4)
pair("siamese maximum", torch.maximum, 4)
pair("siamese hadamard in a list", lambda u, v: torch.stack([u, v]).prod(0), 4)
pair("siamese fourier product", lambda u, v: torch.fft.irfft(torch.fft.rfft(u) * torch.fft.rfft(v), n=4), 4)


@FAMILY.entry("triplet distances")
def triplet():
    def forward(net, x):
        anchor, near, far = net.encoder(x), net.encoder(x.flip(0)), net.encoder(x.roll(1, 0))
        return net.head(torch.stack([(anchor - near).norm(dim=1), (anchor - far).norm(dim=1)], 1))

    return Written(forward, encoder=mlp(6, 8, 4), head=mlp(2, 8, 1)), A


@FAMILY.entry("one weight for both towers")
def tied_towers():
    weight = nn.Parameter(torch.randn(4, 6))
    net = Written(
        lambda net, a, b: net.head(F.linear(a, net.w) * F.linear(b, net.w)), w=weight, head=mlp(4, 8, 2)
    )
    return net, (A, B)


@FAMILY.entry("halves of one result")
def halves():
    def forward(net, x):
        a, b = net.up(x).chunk(2, -1)
        return net.head(a * b)

    return Written(forward, up=nn.Linear(6, 8), head=mlp(4, 8, 2)), A


@FAMILY.entry("two towers, two encoders")
def two_towers():
    net = Written(
        lambda net, a, b: net.head(net.a(a) * net.b(b)), a=mlp(6, 8, 4), b=mlp(6, 8, 4), head=mlp(4, 8, 2)
    )
    return net, (A, B)


@FAMILY.entry("attention without softmax, fused")
def linear_attention_fused():
    def forward(net, x):
        q, k, v = net.qkv(x).chunk(3, -1)
        return net.head(F.relu(net.out(q @ (k.mT @ v))))

    return Written(forward, qkv=nn.Linear(6, 24), out=nn.Linear(8, 8), head=nn.Linear(8, 2)), torch.randn(
        2, 5, 6
    )


@FAMILY.entry("hadamard stream")
def hadamard_stream():
    def forward(net, x):
        h = net.first(x)
        for _ in range(2):
            h = h * net.mix(h)
        return net.head(h)

    return Written(forward, first=nn.Linear(6, 8), mix=nn.Linear(8, 8), head=nn.Linear(8, 2)), A


def code(name: str, quantise, **about):
    """An encoder, codes from a codebook, a decoder of them."""

    def build():
        net = Written(
            lambda net, x: net.decoder(quantise(net.encoder(x), net.codes)),
            encoder=mlp(6, 8, 4),
            codes=nn.Parameter(torch.randn(5, 4)),
            decoder=mlp(4, 8, 6),
        )
        return net, A

    FAMILY.add(name, build, **about)


def straight_through(z, q):
    return z + (q - z).detach()


def expanded(z, e):
    return (z**2).sum(1, keepdim=True) + (e**2).sum(1) - 2 * z @ e.T


code("vq by cdist", lambda z, e: straight_through(z, e[torch.cdist(z, e).argmin(1)]))
code("vq expanded, embedding", lambda z, e: straight_through(z, F.embedding(expanded(z, e).argmin(1), e)))
code("vq one-hot", lambda z, e: straight_through(z, F.one_hot(expanded(z, e).argmin(1), 5).float() @ e))
code("vq by min", lambda z, e: straight_through(z, e[expanded(z, e).min(1).indices]))
code("vq not straight through", lambda z, e: e[((z[:, None] - e) ** 2).sum(-1).argmin(-1)])
code("vq by similarity", lambda z, e: straight_through(z, e[(z @ e.T).argmax(-1)]))
code("vq scatter one-hot", lambda z, e: torch.zeros(3, 5).scatter_(1, expanded(z, e).argmin(1, True), 1) @ e)
code("vq index select", lambda z, e: e.index_select(0, torch.cdist(z, e).argmin(1)))
code("vq gumbel", lambda z, e: F.gumbel_softmax(z @ e.T, hard=True) @ e)
code("vq normalised codes", lambda z, e: e[(F.normalize(z, dim=1) @ F.normalize(e, dim=1).T).argmax(1)])
code("residual vq", lambda z, e: (q := e[torch.cdist(z, e).argmin(1)]) + e[torch.cdist(z - q, e).argmin(1)])
code("finite scalar quantisation", lambda z, e: straight_through(z, (z.tanh() * 3).round() / 3) + 0 * e[0])
code("lookup-free quantisation", lambda z, e: straight_through(z, torch.where(z > 0, 1.0, -1.0)) + 0 * e[0])


def gather(name: str, choose, **about):
    """A layer, a choice among its results by their size, a head."""

    def build():
        net = Written(lambda net, x: net.head(choose(net.up(x))), up=nn.Linear(6, 8), head=nn.LazyLinear(2))
        net(A)
        return net, A

    FAMILY.add(name, build, **about)


ROWS = torch.arange(3)
gather("gather by argmax", lambda h: h.gather(1, h.argmax(1, keepdim=True)))
gather("index by argmax", lambda h: h[ROWS, h.argmax(1)][:, None])
gather("take along argmax", lambda h: h.take_along_dim(h.argmax(1, keepdim=True), 1))
gather("index by max of size", lambda h: h[ROWS, h.abs().max(1).indices][:, None])
gather("one-hot of argmax times", lambda h: F.one_hot(h.argmax(1), 8) * h)
gather("argsort gather", lambda h: h.gather(1, h.argsort(1)))
gather("topk mask", lambda h: h * torch.zeros_like(h).scatter(1, h.topk(3).indices, 1.0))
gather("kwta by threshold", lambda h: h * (h >= h.topk(3).values[:, -1:]))
gather("unpooled", lambda h: F.max_unpool1d(*F.max_pool1d(h[:, None], 2, return_indices=True), [2])[:, 0])
gather("masked by mean", lambda h: h.masked_fill(h < h.mean(1, keepdim=True), 0.0))
gather("compared with a neighbour", lambda h: torch.where(h > h.roll(1, 1), h, h.roll(1, 1)))
gather("largest rows kept", lambda h: h[h.norm(dim=1).argsort()[:2]])
gather("picked by sign", lambda h: h * h.sign())
gather("first chosen by second", lambda h: torch.where(h[:, :4] > 0, h[:, 4:], -h[:, 4:]))
gather("histogram of argmax", lambda h: F.one_hot(h.argmax(1), 8).float())
