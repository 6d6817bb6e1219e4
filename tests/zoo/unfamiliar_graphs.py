"""Graphs and point clouds, in the shapes of PyG: edge lists, scatters, softmaxes over neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Family
from .written import Written, mlp

FAMILY = Family("graphs")
NODES = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
EDGES = torch.cartesian_prod(torch.arange(5), torch.arange(5)).T


def glorot(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


def scatter(values: Tensor, index: Tensor, how: str = "sum", n: int = 5) -> Tensor:
    index = index.view(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return torch.zeros(n, *values.shape[1:]).scatter_reduce(0, index, values, how, include_self=False)


def edge_softmax(logits: Tensor, index: Tensor) -> Tensor:
    out = (logits - scatter(logits.detach(), index, "amax")[index]).exp()
    return out / (scatter(out, index)[index] + 1e-16)


def graph(name: str, **about):
    def add(build):
        FAMILY.add(name, lambda: (build(), (NODES, EDGES)), **about)
        return build

    return add


@graph("gat, vectors of attention")
def gat_conv():
    def forward(net, x, edges):
        i, j = edges[1], edges[0]
        h = net.lin(x).view(-1, 2, 4)
        source, target = (h * net.att_src).sum(-1), (h * net.att_dst).sum(-1)
        alpha = edge_softmax(F.leaky_relu(source[j] + target[i], 0.2), i)
        h = scatter(h[j] * alpha[..., None], i).flatten(1) + net.bias
        return net.out(F.elu(h))

    return Written(
        forward,
        lin=nn.Linear(6, 8, bias=False),
        att_src=glorot(1, 2, 4),
        att_dst=glorot(1, 2, 4),
        bias=nn.Parameter(torch.zeros(8)),
        out=nn.Linear(8, 3),
    )


@graph("gat, second version")
def gatv2_conv():
    def forward(net, x, edges):
        i, j = edges[1], edges[0]
        left, right = net.left(x).view(-1, 2, 4), net.right(x).view(-1, 2, 4)
        alpha = (F.leaky_relu(left[j] + right[i], 0.2) * net.att).sum(-1)
        h = scatter(left[j] * edge_softmax(alpha, i)[..., None], i).flatten(1)
        return net.out(F.elu(h))

    return Written(
        forward, left=nn.Linear(6, 8), right=nn.Linear(6, 8), att=glorot(1, 2, 4), out=nn.Linear(8, 3)
    )


@graph("gat, one vector for both ends")
def gat_concatenated():
    def forward(net, x, edges):
        i, j = edges[1], edges[0]
        h = x @ net.w
        alpha = edge_softmax(F.leaky_relu(torch.cat([h[i], h[j]], 1) @ net.a, 0.2), i)
        return net.out(F.elu(scatter(h[j] * alpha, i)))

    return Written(forward, w=glorot(6, 8), a=glorot(16, 1), out=nn.Linear(8, 3))


@graph("transformer convolution with edges")
def transformer_conv():
    def forward(net, x, edges):
        i, j = edges[1], edges[0]
        q, k, v = net.q(x).view(-1, 2, 4), net.k(x).view(-1, 2, 4), net.v(x).view(-1, 2, 4)
        alpha = edge_softmax((q[i] * k[j]).sum(-1) / 2, i)
        out = scatter(v[j] * alpha[..., None], i).flatten(1)
        beta = torch.sigmoid(net.beta(torch.cat([out, net.skip(x), out - net.skip(x)], -1)))
        return net.out(F.relu(beta * net.skip(x) + (1 - beta) * out))

    return Written(
        forward,
        q=nn.Linear(6, 8),
        k=nn.Linear(6, 8),
        v=nn.Linear(6, 8),
        skip=nn.Linear(6, 8),
        beta=nn.Linear(24, 1),
        out=nn.Linear(8, 3),
    )


@graph("principal aggregation")
def pna():
    def forward(net, x, edges):
        i, j = edges[1], edges[0]
        m = net.pre(torch.cat([x[i], x[j]], 1))
        h = torch.cat([scatter(m, i, how) for how in ("mean", "amax", "amin")], 1)
        square = scatter(m * m, i, "mean")
        h = torch.cat([h, (square - scatter(m, i, "mean") ** 2).relu().add(1e-5).sqrt()], 1)
        return net.post(h)

    return Written(forward, pre=nn.Linear(12, 4), post=nn.Linear(16, 3))


@graph("gcn with torch.mm and a bias")
def gcn_mm_bias():
    def forward(net, x, edges):
        a = torch.zeros(5, 5).index_put_((edges[1], edges[0]), torch.ones(25))
        h = torch.mm(a, torch.mm(x, net.w1)) + net.b1
        return torch.mm(a, torch.mm(F.dropout(F.relu(h), training=net.training), net.w2)) + net.b2

    return Written(
        forward,
        w1=glorot(6, 8),
        b1=nn.Parameter(torch.zeros(8)),
        w2=glorot(8, 3),
        b2=nn.Parameter(torch.zeros(3)),
    )


@graph("sparse adjacency")
def sparse_gcn():
    def forward(net, x, edges):
        a = torch.sparse_coo_tensor(edges.flip(0), torch.ones(25), (5, 5))
        h = torch.sparse.mm(a, net.first(x))
        return torch.sparse.mm(a, net.second(F.relu(h)))

    return Written(forward, first=nn.Linear(6, 8), second=nn.Linear(8, 3))


@graph("relations in a basis")
def rgcn_basis():
    def forward(net, x, edges):
        weights = torch.einsum("rb,bio->rio", net.comp, net.bases)
        kinds = torch.arange(25) % 3
        messages = torch.bmm(x[edges[0]].unsqueeze(1), weights[kinds]).squeeze(1)
        return net.out(F.relu(scatter(messages, edges[1]) + x @ net.root))

    return Written(forward, comp=glorot(3, 2), bases=glorot(2, 6, 8), root=glorot(6, 8), out=nn.Linear(8, 3))


@graph("gated graph network")
def gated():
    def forward(net, x, edges):
        h = F.pad(x, (0, 2))
        for i in range(2):
            h = net.rnn(scatter((h @ net.weight[i])[edges[0]], edges[1]), h)
        return net.out(h)

    return Written(forward, weight=glorot(2, 8, 8), rnn=nn.GRUCell(8, 8), out=nn.Linear(8, 3))


FAMILY[-1] = FAMILY[-1].__class__(**{**vars(FAMILY[-1]), "options": {"rnn": "layernorm"}})


@graph("edge convolution, dynamic neighbours")
def dynamic_edge():
    def forward(net, x, edges):
        neighbours = torch.cdist(x, x).topk(3, largest=False).indices
        pairs = torch.cat([x[:, None].expand(-1, 3, -1), x[neighbours] - x[:, None]], -1)
        h = net.mlp(pairs).amax(1)
        again = torch.cdist(h, h).topk(3, largest=False).indices
        return net.out((h[again] - h[:, None]).mean(1))

    return Written(
        forward, mlp=nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4)), out=nn.Linear(4, 3)
    )


@graph("top-k pooling of nodes")
def topk_pool():
    def forward(net, x, edges):
        h = net.lin(x)
        score = (h * net.weight).sum(-1) / net.weight.norm(p=2, dim=-1)
        keep = score.topk(3).indices
        return net.out(F.relu(h[keep] * score[keep].tanh()[:, None]).mean(0, keepdim=True))

    return Written(forward, lin=nn.Linear(6, 8), weight=glorot(1, 8), out=nn.Linear(8, 3))


@graph("link scores by product")
def link_decoder():
    def forward(net, x, edges):
        z = net.second(F.relu(net.first(x)))
        return net.scorer(z[edges[0]] * z[edges[1]])

    return Written(forward, first=nn.Linear(6, 8), second=nn.Linear(8, 4), scorer=mlp(4, 8, 1))


@graph("link scores by inner product")
def inner_product():
    def forward(net, x, edges):
        z = net.second(F.relu(net.first(x)))
        return (z[edges[0]] * z[edges[1]]).sum(-1)

    return Written(forward, first=nn.Linear(6, 8), second=nn.Linear(8, 4))


@graph("message of relation vectors")
def composition():
    def forward(net, x, edges):
        r = net.relations[torch.arange(25) % 3]
        return net.out(F.relu(scatter(net.lin(x[edges[0]] * r), edges[1])))

    return Written(forward, relations=glorot(3, 6), lin=nn.Linear(6, 8), out=nn.Linear(8, 3))


@dataclass
class Graph:
    x: Tensor
    edge_index: Tensor
    y: Tensor | None = None
    batch: Tensor = field(init=False)  # never set, as in many datasets


@FAMILY.entry("graph in a dataclass with unset fields")
def in_dataclass():
    def forward(net, g):
        h = F.relu(net.a(g.x) + scatter(net.b(g.x)[g.edge_index[0]], g.edge_index[1], "mean"))
        return net.out(h)

    net = Written(forward, a=nn.Linear(6, 8), b=nn.Linear(6, 8, bias=False), out=nn.Linear(8, 3))
    return net, (Graph(NODES, EDGES),)


@FAMILY.entry("equivariant layer with norms of differences")
def equivariant():
    def forward(net, x, position, edges):
        i, j = edges[1], edges[0]
        gap = position[i] - position[j]
        m = net.message(torch.cat([x[i], x[j], gap.square().sum(-1, keepdim=True)], -1))
        position = position + scatter(gap * net.coordinate(F.silu(m)), i, "mean")
        return net.node(torch.cat([x, scatter(F.silu(m), i)], -1)), position

    return Written(
        forward, message=mlp(13, 8, 8, nn.SiLU), coordinate=mlp(8, 8, 1, nn.SiLU), node=mlp(14, 8, 3, nn.SiLU)
    ), (NODES, torch.randn(5, 3), EDGES)


@FAMILY.entry("vector neurons")
def vector_neurons():
    def forward(net, x):
        q, k = net.map_to_feat(x), net.map_to_dir(x)
        dot = (q * k).sum(-2, keepdim=True)
        mask = (dot >= 0).float()
        q = mask * q + (1 - mask) * (q - dot / ((k * k).sum(-2, keepdim=True) + 1e-6) * k)
        return net.out(q.norm(dim=-2))

    return Written(
        forward,
        map_to_feat=nn.Linear(6, 8, bias=False),
        map_to_dir=nn.Linear(6, 8, bias=False),
        out=nn.Linear(8, 3),
    ), torch.randn(4, 3, 6)
