"""Queries, keys and codes that are parameters; tables whose rows are compared, chosen or reduced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("queries")
X = torch.linspace(-1, 1, 24).reshape(4, 6).sin()
STREAM = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3))
TOKENS = torch.tensor([[1, 4, 2, 7], [3, 3, 5, 6], [0, 8, 2, 1]])


def net(name: str, forward: Callable[..., Any], x: Any = X, **parts: Callable[[], Any]) -> None:
    FAMILY.add(name, lambda: (Written(forward, **{k: part() for k, part in parts.items()}), x))


def linear(inputs: int, outputs: int, bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(inputs, outputs, bias)


def raw(*shape: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


def many(x, like):
    return x.expand(len(like), -1, -1)


def fused(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def plain(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


QKV = {"q": linear(8, 8), "k": linear(8, 8), "v": linear(8, 8), "head": linear(8, 2)}
QUERY = QKV | {"q": raw(1, 3, 8)}
for kind, attend in (("fused", fused), ("written out", plain)):
    net(
        f"learned query, {kind}",
        lambda n, s, attend=attend: n.head(attend(many(n.q, s), n.k(s), n.v(s))),
        STREAM,
        **QUERY,
    )
    net(
        f"learned query through a layer, {kind}",
        lambda n, s, attend=attend: n.head(attend(n.w(many(n.q, s)), n.k(s), n.v(s))),
        STREAM,
        **QUERY,
        w=linear(8, 8),
    )
    net(
        f"keys and values of memory, {kind}",
        lambda n, s, attend=attend: n.head(
            attend(n.q(s), torch.cat([many(n.mk, s), n.k(s)], 1), torch.cat([many(n.mv, s), n.v(s)], 1))
        ),
        STREAM,
        **QKV,
        mk=raw(2, 8),
        mv=raw(2, 8),
    )
net(
    "learned keys and values, fused",
    lambda n, s: n.head(fused(n.q(s), many(n.k, s), many(n.v, s))),
    STREAM,
    **QKV | {"k": raw(3, 8), "v": raw(3, 8)},
)
net(
    "external attention",
    lambda n, s: n.head(n.v(n.k(n.q(s)).softmax(1))),
    STREAM,
    **QKV | {"k": linear(8, 4, False), "v": linear(4, 8, False)},
)
net(
    "attention with biases for content and position",
    lambda n, s: n.head(
        (((n.q(s) + n.content) @ n.k(s).mT + (n.q(s) + n.place) @ n.r.mT) / 8**0.5).softmax(-1) @ n.v(s)
    ),
    STREAM,
    **QKV,
    content=raw(8),
    place=raw(8),
    r=raw(5, 8),
)


def relative_keys(net, s):
    far = torch.arange(5)[:, None] - torch.arange(5) + 4
    logits = net.q(s) @ net.k(s).mT + torch.einsum("bid,ijd->bij", net.q(s), net.far(far))
    return net.head((logits / 8**0.5).softmax(-1) @ net.v(s))


net("relative keys from a table", relative_keys, STREAM, **QKV, far=lambda: nn.Embedding(9, 8))
net(
    "general attention with a raw matrix",
    lambda n, s: n.head(torch.einsum("bid,de,bje->bij", h := n.a(s), n.w, h).softmax(-1) @ h),
    STREAM,
    a=linear(8, 8),
    w=raw(8, 8),
    head=linear(8, 2),
)


def through(net, z, codes, index):
    """Straight through: the code in the forward pass, the encoder's gradient in the backward pass."""
    return net.decoder(z + (F.embedding(index, codes) - z).detach())


def nearest_by_hand(net, x):
    z, codes = net.encoder(x), net.codes
    far = (z**2).sum(-1, keepdim=True) - 2 * z @ codes.T + (codes**2).sum(-1)
    return through(net, z, codes, far.argmin(-1))


def nearest_by_cosine(net, x):
    z = F.normalize(net.encoder(x), dim=-1)
    return through(net, z, net.codes, (z @ F.normalize(net.codes, dim=-1).T).argmax(-1))


def nearest_in_two_steps(net, x):
    z = rest = net.encoder(x)
    total = torch.zeros_like(z)
    for codes in (net.codes, net.more):
        chosen = F.embedding(torch.cdist(rest, codes).argmin(-1), codes)
        total, rest = total + chosen, rest - chosen.detach()
    return net.decoder(z + (total - z).detach())


def nearest_as_mask(net, x):
    z = net.encoder(x)
    far = (z.unsqueeze(1) - net.codes).pow(2).sum(-1)
    chosen = F.one_hot(far.argmin(-1), len(net.codes)).to(z) @ net.codes
    return net.decoder(z + (chosen - z).detach()), (chosen - z.detach()).square().mean()


CODES = {"encoder": lambda: mlp(6, 8, 4), "codes": raw(7, 4), "decoder": lambda: mlp(4, 8, 6)}
net("codes, distances by hand", nearest_by_hand, **CODES)
net(
    "codes, cdist",
    lambda n, x: through(n, z := n.encoder(x), n.codes, torch.cdist(z, n.codes).argmin(-1)),
    **CODES,
)
net("codes, cosine", nearest_by_cosine, **CODES)
net("codes, two steps", nearest_in_two_steps, **CODES, more=raw(7, 4))
net("codes, one-hot", nearest_as_mask, **CODES)

PROTOTYPES = {"a": linear(6, 8), "c": raw(5, 8), "head": linear(5, 2)}
net("distances to prototypes, cdist", lambda n, x: n.head(torch.cdist(n.a(x), n.c)), **PROTOTYPES)
net(
    "distances to prototypes, L1",
    lambda n, x: n.head((n.a(x).unsqueeze(1) - n.c).abs().sum(-1)),
    **PROTOTYPES,
)
net(
    "cosines with prototypes",
    lambda n, x: n.head(F.cosine_similarity(n.a(x).unsqueeze(1), n.c, dim=-1).relu()),
    **PROTOTYPES,
)
net(
    "cosine head",
    lambda n, x: F.linear(F.normalize(n.a(x)), F.normalize(n.c)) * n.scale.exp(),
    a=lambda: mlp(6, 8, 5),
    c=raw(3, 5),
    scale=raw(1),
)


def indexed(net, s):
    """Sparse attention whose tokens a second, smaller attention chooses."""
    scores = torch.einsum(
        "bih,bijh->bij", net.weigh(s), F.relu(net.iq(s).unsqueeze(2) * net.ik(s).unsqueeze(1))
    )
    closed = torch.full_like(scores, -1e9).scatter(-1, scores.topk(3, -1).indices, 0.0)
    q, k, v = net.q(s), net.k(s), net.v(s)
    return net.head((q @ k.mT / 8**0.5 + closed).softmax(-1) @ v)


net(
    "tokens chosen by an indexer",
    indexed,
    STREAM,
    **QKV,
    weigh=linear(8, 4),
    iq=linear(8, 4),
    ik=linear(8, 4),
)


def pool_largest(net, s):
    h = net.a(s)
    score = (h @ net.p) / net.p.norm()
    chosen = score.topk(3, -1)
    kept = h.gather(1, chosen.indices.unsqueeze(-1).expand(-1, -1, 8))
    return net.head(kept * chosen.values.tanh().unsqueeze(-1))


net("top-k pooling", pool_largest, STREAM, a=linear(8, 8), p=raw(8), head=linear(8, 2))
net(
    "gather where another is largest",
    lambda n, s: n.head(n.a(s).gather(1, n.b(s).argmax(1, keepdim=True).expand(-1, -1, 8))),
    STREAM,
    a=linear(8, 8),
    b=linear(8, 1),
    head=linear(8, 2),
)


def bag(mode: str) -> Callable[[], nn.Module]:
    return lambda: nn.EmbeddingBag(9, 6, mode=mode)


HEAD = {"head": linear(6, 2)}
net("bag of embeddings, mean", lambda n, t: n.head(F.relu(n.bag(t))), TOKENS, bag=bag("mean"), **HEAD)
net("bag of embeddings, max", lambda n, t: n.head(n.bag(t)), TOKENS, bag=bag("max"), **HEAD)
net(
    "embedding cut to a norm",
    lambda n, t: n.head(F.relu(n.table(t).sum(1))),
    TOKENS,
    table=lambda: nn.Embedding(9, 6, max_norm=1.0),
    **HEAD,
)


def rows(net, t):
    return net.table[t]


def gathered(net, t):
    return net.table.expand(len(t), -1, -1).gather(1, t.unsqueeze(-1).expand(-1, -1, 6))


RAW = {"table": raw(9, 6), **HEAD}
net("raw table by index, relu", lambda n, t: n.head(F.relu(rows(n, t)).sum(1)), TOKENS, **RAW)
net("raw table by index, square", lambda n, t: n.head(rows(n, t).sum(1) ** 2), TOKENS, **RAW)
net("raw table by gather, relu", lambda n, t: n.head(F.relu(gathered(n, t)).sum(1)), TOKENS, **RAW)
net(
    "two raw tables, their product",
    lambda n, t: n.head(n.table[t[:, 0]] * n.other[t[:, 1]]),
    TOKENS,
    **RAW,
    other=raw(9, 6),
)
net(
    "learned tokens that are activated",
    lambda n, s: n.head(torch.cat([many(F.gelu(n.p), s), s], 1)),
    STREAM,
    p=raw(3, 8),
    head=linear(8, 2),
)
net(
    "weights of tanh and sigmoid",
    lambda n, x: n.head(F.linear(x, n.w.tanh() * n.m.sigmoid())),
    w=raw(5, 6),
    m=raw(5, 6),
    head=linear(5, 2),
)
net(
    "memory that is written to by the same values",
    lambda n, s: n.head(plain(n.q(s), n.k(m := plain(n.q(many(n.m, s)), n.k(s), n.v(s))), n.v(m))),
    STREAM,
    **QKV,
    m=raw(1, 3, 8),
)
