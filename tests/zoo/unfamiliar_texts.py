"""Language models in the shapes of x-transformers and of state-space libraries."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .entry import Family
from .written import Written, mlp

FAMILY = Family("texts")
TOKENS = torch.tensor([[1, 4, 2, 7, 0], [3, 3, 5, 6, 2]])
STREAM = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3))


def attend(q, k, v, causal=True):
    logits = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(hidden, -torch.finfo(logits.dtype).max)
    return logits.softmax(-1) @ v


def block(name: str, forward, x=STREAM, **parts):
    """Parts are functions, so that each build has weights of its own."""
    FAMILY.add(name, lambda: (Written(forward, **{k: part() for k, part in parts.items()}), (x,)))


def relu_squared(net, x):
    h = net.norm(x)
    return x + net.down(F.relu(net.up(h)) ** 2)


block(
    "relu squared",
    relu_squared,
    norm=lambda: nn.LayerNorm(8),
    up=lambda: nn.Linear(8, 16),
    down=lambda: nn.Linear(16, 8),
)


def bilinear_glu(net, x):
    a, b = net.up(net.norm(x)).chunk(2, -1)
    return x + net.down(a * b)


block(
    "bilinear GLU, fused",
    bilinear_glu,
    norm=lambda: nn.RMSNorm(8),
    up=lambda: nn.Linear(8, 32, bias=False),
    down=lambda: nn.Linear(16, 8),
)


def bilinear_glu_apart(net, x):
    h = net.embed(x)
    return net.down(net.gate(h) * net.up(h))


block(
    "bilinear GLU on an embedding",
    bilinear_glu_apart,
    embed=lambda: nn.Linear(8, 8),
    gate=lambda: nn.Linear(8, 16),
    up=lambda: nn.Linear(8, 16),
    down=lambda: nn.Linear(16, 8),
)


def sigmoid_attention(net, x):
    q, k, v = net.qkv(net.norm(x)).chunk(3, -1)
    return net.out((q @ k.mT / 8**0.5 - 1.6).sigmoid() @ v)


block(
    "sigmoid attention",
    sigmoid_attention,
    norm=lambda: nn.LayerNorm(8),
    qkv=lambda: nn.Linear(8, 24, bias=False),
    out=lambda: nn.Linear(8, 3),
)


def relu_squared_attention(net, x):
    q, k, v = net.q(x), net.k(x), net.v(x)
    return net.out(F.relu(q @ k.mT).square() / 5 @ v)


block(
    "relu squared attention",
    relu_squared_attention,
    q=lambda: nn.Linear(8, 8),
    k=lambda: nn.Linear(8, 8),
    v=lambda: nn.Linear(8, 8),
    out=lambda: nn.Linear(8, 3),
)


def l2_attention(net, x):
    q, k, v = net.q(x), net.k(x), net.v(x)
    return net.out((-torch.cdist(q, k).square()).softmax(-1) @ v)


block(
    "distance attention",
    l2_attention,
    q=lambda: nn.Linear(8, 8),
    k=lambda: nn.Linear(8, 8),
    v=lambda: nn.Linear(8, 8),
    out=lambda: nn.Linear(8, 3),
)


def additive_fast_attention(net, x):
    q, k, v = net.qkv(x).chunk(3, -1)
    pooled = (net.to_q(q).softmax(1) * q).sum(1, keepdim=True)
    k = k * pooled
    pooled = (net.to_k(k).softmax(1) * k).sum(1, keepdim=True)
    return net.out(v * pooled) + q


block(
    "fastformer",
    additive_fast_attention,
    qkv=lambda: nn.Linear(8, 24, bias=False),
    to_q=lambda: nn.Linear(8, 1),
    to_k=lambda: nn.Linear(8, 1),
    out=lambda: nn.Linear(8, 8),
)


def attention_free(net, x):
    q, k, v = net.q(x), net.k(x), net.v(x)
    weight = (net.w + k[:, None]).exp() if False else k.exp()
    return net.out(torch.sigmoid(q) * (weight * v).cumsum(1) / weight.cumsum(1))


block(
    "attention free",
    attention_free,
    q=lambda: nn.Linear(8, 8),
    k=lambda: nn.Linear(8, 8),
    v=lambda: nn.Linear(8, 8),
    out=lambda: nn.Linear(8, 3),
)


def delta_rule(net, x):
    q, k, v = net.qkv(x).chunk(3, -1)
    beta, state, out = net.beta(x).sigmoid(), torch.zeros(2, 8, 8), []
    k = F.normalize(k, dim=-1)
    for t in range(x.shape[1]):
        old = torch.einsum("bij,bj->bi", state, k[:, t])
        state = state + torch.einsum("bi,bj->bij", beta[:, t] * (v[:, t] - old), k[:, t])
        out.append(torch.einsum("bij,bj->bi", state, q[:, t]))
    return net.out(torch.stack(out, 1))


block(
    "delta rule",
    delta_rule,
    qkv=lambda: nn.Linear(8, 24),
    beta=lambda: nn.Linear(8, 1),
    out=lambda: nn.Linear(8, 3),
)


def selective_scan(net, x):
    u, z = F.linear(x, net.in_proj.weight).chunk(2, -1)
    u = F.silu(F.conv1d(u.mT, net.conv.weight, net.conv.bias, padding=3, groups=8)[..., :5]).mT
    dt, b, c = F.linear(u, net.x_proj.weight).split([2, 4, 4], -1)
    dt = F.softplus(F.linear(dt, net.dt_proj.weight) + net.dt_proj.bias)
    decay = torch.exp(dt[..., None] * -net.a_log.exp())
    state, out = torch.zeros(2, 8, 4), []
    for t in range(5):
        state = decay[:, t] * state + dt[:, t, :, None] * b[:, t, None] * u[:, t, :, None]
        out.append((state * c[:, t, None]).sum(-1))
    y = (torch.stack(out, 1) + u * net.d) * F.silu(z)
    return F.linear(y, net.out_proj.weight)


block(
    "selective scan by functions",
    selective_scan,
    in_proj=lambda: nn.Linear(8, 16, bias=False),
    conv=lambda: nn.Conv1d(8, 8, 4, groups=8, padding=3),
    x_proj=lambda: nn.Linear(8, 10, bias=False),
    dt_proj=lambda: nn.Linear(2, 8),
    a_log=lambda: nn.Parameter(torch.randn(8, 4)),
    d=lambda: nn.Parameter(torch.ones(8)),
    out_proj=lambda: nn.Linear(8, 8, bias=False),
)


def gated_retention(net, x):
    q, k, v, g = net.q(x), net.k(x), net.v(x), net.g(x)
    decay = 0.9 ** (torch.arange(5)[:, None] - torch.arange(5)).clamp(min=0) * torch.ones(5, 5).tril()
    y = (q @ k.mT * decay) @ v
    return net.out(F.silu(g) * F.group_norm(y.flatten(0, 1), 2).view_as(y))


block(
    "gated retention",
    gated_retention,
    q=lambda: nn.Linear(8, 8),
    k=lambda: nn.Linear(8, 8),
    v=lambda: nn.Linear(8, 8),
    g=lambda: nn.Linear(8, 8),
    out=lambda: nn.Linear(8, 3),
)


def hgrn(net, x):
    f = net.lower + (1 - net.lower) * net.forget(x).sigmoid()
    i = F.silu(net.inp(x)) * (1 - f)
    h, out = torch.zeros(2, 8), []
    for t in range(5):
        h = f[:, t] * h + i[:, t]
        out.append(h)
    return net.out(F.rms_norm(torch.stack(out, 1), (8,)) * net.gate(x))


block(
    "gated recurrence with a lower bound",
    hgrn,
    forget=lambda: nn.Linear(8, 8),
    inp=lambda: nn.Linear(8, 8),
    gate=lambda: nn.Linear(8, 8),
    lower=lambda: nn.Parameter(torch.rand(8)),
    out=lambda: nn.Linear(8, 3),
)


def multi_query_expert(net, x):
    flat = x.flatten(0, 1)
    scores = (flat @ net.router).softmax(-1)
    weights, chosen = scores.topk(2, -1)
    out = torch.zeros_like(flat)
    for e in range(3):
        rows, place = (chosen == e).nonzero(as_tuple=True)
        h = F.silu(flat[rows] @ net.w1[e]) * (flat[rows] @ net.w3[e])
        out = out.index_add(0, rows, (h @ net.w2[e]) * weights[rows, place, None])
    return net.head(net.norm(x + out.view_as(x)))


block(
    "experts, top-2, raw",
    multi_query_expert,
    router=lambda: nn.Parameter(torch.randn(8, 3)),
    w1=lambda: nn.Parameter(torch.randn(3, 8, 16)),
    w2=lambda: nn.Parameter(torch.randn(3, 16, 8)),
    w3=lambda: nn.Parameter(torch.randn(3, 8, 16)),
    norm=lambda: nn.LayerNorm(8),
    head=lambda: nn.Linear(8, 3),
)


def expert_choice(net, x):
    flat = x.flatten(0, 1)
    gate, rows = net.router(flat).softmax(-1).T.topk(4, -1)
    h = torch.einsum("eci,eio->eco", flat[rows], net.up)
    h = torch.einsum("eco,eoi->eci", F.gelu(h), net.down) * gate[..., None]
    return net.head(flat + torch.zeros_like(flat).index_add(0, rows.flatten(), h.flatten(0, 1)))


block(
    "expert choice",
    expert_choice,
    router=lambda: nn.Linear(8, 3),
    up=lambda: nn.Parameter(torch.randn(3, 8, 16)),
    down=lambda: nn.Parameter(torch.randn(3, 16, 8)),
    head=lambda: nn.Linear(8, 3),
)


def product_keys(net, x):
    q1, q2 = net.query(x).chunk(2, -1)
    s1, i1 = (q1 @ net.keys1.T).topk(2, -1)
    s2, i2 = (q2 @ net.keys2.T).topk(2, -1)
    scores = (s1[..., :, None] + s2[..., None, :]).flatten(-2)
    index = (i1[..., :, None] * 4 + i2[..., None, :]).flatten(-2)
    return net.out((scores.softmax(-1)[..., None] * net.values(index)).sum(-2))


block(
    "product keys",
    product_keys,
    query=lambda: nn.Linear(8, 8),
    keys1=lambda: nn.Parameter(torch.randn(4, 4)),
    keys2=lambda: nn.Parameter(torch.randn(4, 4)),
    values=lambda: nn.Embedding(16, 8),
    out=lambda: nn.Linear(8, 3),
)


def tied_squares(net, tokens):
    h = net.table(tokens)
    return net.head((h * h.flip(1)).sum(1))


block(
    "products of one table", tied_squares, TOKENS, table=lambda: nn.Embedding(8, 8), head=lambda: mlp(8, 8, 2)
)


def tied_language_model(net, tokens):
    h = net.table(tokens) + net.pos(torch.arange(5))
    q, k, v = (F.linear(net.norm(h), w) for w in net.qkv.weight.chunk(3))
    h = h + net.out(attend(q, k, v))
    return net.norm(h) @ net.table.weight.T


block(
    "tied language model, sliced weights",
    tied_language_model,
    TOKENS,
    table=lambda: nn.Embedding(9, 8),
    pos=lambda: nn.Embedding(5, 8),
    norm=lambda: nn.LayerNorm(8),
    qkv=lambda: nn.Linear(8, 24),
    out=lambda: nn.Linear(8, 8),
)


def checkpointed(net, x):
    def inner(h):
        q, k, v = net.qkv(net.norm(h)).chunk(3, -1)
        return h + net.out(attend(q, k, v))

    x = checkpoint(inner, x, use_reentrant=False)
    return checkpoint(lambda h: net.head(F.gelu(net.up(h))), x, use_reentrant=False)


block(
    "checkpointed masked attention",
    checkpointed,
    norm=lambda: nn.LayerNorm(8),
    qkv=lambda: nn.Linear(8, 24),
    out=lambda: nn.Linear(8, 8),
    up=lambda: nn.Linear(8, 16),
    head=lambda: nn.Linear(16, 3),
)


def dynamic_positions(net, x):
    gaps = (torch.arange(5)[:, None] - torch.arange(5)).float()
    bias = net.bias(gaps[..., None].sign() * gaps[..., None].abs().log1p()).squeeze(-1)
    q, k, v = net.qkv(x).chunk(3, -1)
    return net.out((q @ k.mT + bias).softmax(-1) @ v)


block(
    "dynamic position bias",
    dynamic_positions,
    bias=lambda: mlp(1, 8, 1, nn.SiLU),
    qkv=lambda: nn.Linear(8, 24),
    out=lambda: nn.Linear(8, 3),
)


def token_shift_mix(net, x):
    shifted = F.pad(x, (0, 0, 1, -1))
    r = net.r(x * net.mix + shifted * (1 - net.mix)).sigmoid()
    return net.head(r * net.value(F.relu(net.key(x * net.mix + shifted * (1 - net.mix))).square()))


block(
    "channel mix",
    token_shift_mix,
    mix=lambda: nn.Parameter(torch.rand(1, 1, 8)),
    r=lambda: nn.Linear(8, 8, bias=False),
    key=lambda: nn.Linear(8, 16, bias=False),
    value=lambda: nn.Linear(16, 8, bias=False),
    head=lambda: nn.Linear(8, 3),
)


def memory_matrix(net, x):
    m = net.memory
    h = (net.q(x) @ m.T).softmax(-1) @ m
    return net.head(F.relu(net.o(h)))


block(
    "memory read twice",
    memory_matrix,
    memory=lambda: nn.Parameter(torch.randn(6, 8)),
    q=lambda: nn.Linear(8, 8),
    o=lambda: nn.Linear(8, 8),
    head=lambda: nn.Linear(8, 3),
)
