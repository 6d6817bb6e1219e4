"""One activation for several layers that are raw parameters, and parameters stacked for `vmap`."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from .entry import Family
from .written import Written, mlp

FAMILY = Family("shared")
X = torch.linspace(-1, 1, 18).reshape(3, 6)


def raw(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


@FAMILY.entry("one act, two raw layers")
def two_raw():
    def forward(net, x):
        return net.head(net.act(F.linear(net.act(F.linear(x, net.a)), net.b)))

    return Written(forward, a=raw(8, 6), b=raw(8, 8), act=nn.GELU(), head=nn.Linear(8, 2)), X


@FAMILY.entry("one act, other widths")
def other_widths():
    def forward(net, x):
        return net.head(net.act(net.act(x @ net.a) @ net.b))

    return Written(forward, a=raw(6, 8), b=raw(8, 5), act=nn.SiLU(), head=nn.Linear(5, 2)), X


@FAMILY.entry("one act, one behind a LayerNorm")
def behind_norm():
    def forward(net, x):
        h = net.act(net.norm(x @ net.a))
        return net.head(net.act(h @ net.b))

    return Written(
        forward, a=raw(6, 8), b=raw(8, 8), norm=nn.LayerNorm(8), act=nn.ReLU(), head=nn.Linear(8, 2)
    ), X


@FAMILY.entry("one act in a loop of raw layers")
def raw_loop():
    def forward(net, x):
        for weight, bias in zip(net.weights, net.biases, strict=True):
            x = net.act(torch.addmm(bias, x, weight))
        return net.head(x)

    weights = nn.ParameterList([raw(6, 8), raw(8, 8), raw(8, 8)])
    biases = nn.ParameterList([nn.Parameter(torch.zeros(8)) for _ in range(3)])
    return Written(forward, weights=weights, biases=biases, act=nn.Tanh(), head=nn.Linear(8, 2)), X


@FAMILY.entry("one act, raw and modules")
def raw_and_modules():
    def forward(net, x):
        return net.head(net.act(net.b(net.act(F.linear(x, net.a, net.bias)))))

    bias = nn.Parameter(torch.zeros(8))
    return Written(forward, a=raw(8, 6), bias=bias, b=nn.Linear(8, 8), act=nn.ReLU(), head=nn.Linear(8, 2)), X


@FAMILY.entry("one act, sums of raw products")
def raw_sums():
    def forward(net, x):
        h = net.act(x @ net.a + x.flip(1) @ net.b)
        return net.head(net.act(h @ net.c + x @ net.d))

    return Written(
        forward, a=raw(6, 8), b=raw(6, 8), c=raw(8, 7), d=raw(6, 7), act=nn.ELU(), head=nn.Linear(7, 2)
    ), X


@FAMILY.entry("one act, raw convolutions")
def raw_convolutions():
    def forward(net, x):
        h = net.act(F.conv2d(x, net.a, net.bias, padding=1))
        return net.head(net.act(F.conv2d(h, net.b, stride=2)).flatten(1))

    parts = {"a": nn.Parameter(torch.randn(4, 3, 3, 3)), "b": nn.Parameter(torch.randn(5, 4, 2, 2))}
    net = Written(forward, **parts, bias=nn.Parameter(torch.zeros(4)), act=nn.ReLU(), head=nn.Linear(20, 2))
    return net, torch.randn(2, 3, 4, 4)


@FAMILY.entry("one act for a raw LoRA twice", refusal="act, and that is called 2 times")
def raw_lora_twice():
    def layer(net, x, i):
        return F.linear(x, net.w[i]) + F.linear(F.linear(x, net.down[i]), net.up[i])

    def forward(net, x):
        return net.head(net.act(layer(net, net.act(layer(net, x, 0)), 1)))

    lists = {
        key: nn.ParameterList([raw(*s) for s in shapes])
        for key, shapes in {"w": ((8, 6), (7, 8)), "down": ((2, 6), (2, 8)), "up": ((8, 2), (7, 2))}.items()
    }
    return Written(forward, **lists, act=nn.ReLU(), head=nn.Linear(7, 2)), X


@FAMILY.entry("one act for parametrised products")
def scaled_raw():
    def forward(net, x):
        h = net.act(F.linear(x, net.a * net.s))
        return net.head(net.act(F.linear(h, net.b / net.b.norm())))

    return Written(
        forward,
        a=raw(8, 6),
        s=nn.Parameter(torch.ones(8, 1)),
        b=raw(7, 8),
        act=nn.GELU(),
        head=nn.Linear(7, 2),
    ), X


class TorchFunc(nn.Module):
    """An ensemble as torch.func's tutorial writes it: states stacked, one skeleton on the meta device."""

    def __init__(self, members, in_dims=(0, 0, None)):
        super().__init__()
        params, buffers = stack_module_state(members)
        self.names = list(params)
        self.params = nn.ParameterList([nn.Parameter(p.detach()) for p in params.values()])
        self.buffers_ = buffers
        self.skeleton = [copy.deepcopy(members[0]).to("meta")]
        self.in_dims = in_dims

    def forward(self, x):
        def one(params, buffers, x):
            return functional_call(self.skeleton[0], (params, buffers), (x,))

        stacked = dict(zip(self.names, self.params, strict=True))
        return vmap(one, in_dims=self.in_dims)(stacked, self.buffers_, x)


@FAMILY.entry("vmap: stack_module_state")
def stacked_states():
    return TorchFunc([mlp(6, 8, 2) for _ in range(4)]), X


@FAMILY.entry("vmap: stack_module_state, own inputs", batched=False)
def stacked_own_inputs():
    return TorchFunc([mlp(6, 8, 2) for _ in range(4)], (0, 0, 0)), torch.randn(4, 3, 6)


@FAMILY.entry("vmap: deeper members with norms")
def stacked_normed():
    def member():
        return nn.Sequential(
            nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 1)
        )

    return TorchFunc([member() for _ in range(3)]), X


@FAMILY.entry("vmap: convolutions")
def stacked_convolutions():
    def member():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))

    return TorchFunc([member() for _ in range(3)]), torch.randn(2, 3, 4, 4)


@FAMILY.entry("vmap: raw weights, one function")
def vmapped_function():
    def forward(net, x):
        def one(w, b, v):
            return F.relu(x @ w + b) @ v

        return torch.vmap(one)(net.w, net.b, net.v).mean(0)

    return Written(forward, w=raw(4, 6, 8), b=nn.Parameter(torch.zeros(4, 8)), v=raw(4, 8, 2)), X


@FAMILY.entry("vmap: over the samples of a model")
def vmapped_samples():
    return Written(lambda net, x: torch.vmap(net.inner)(x), inner=mlp(6, 8, 2)), X


@FAMILY.entry("vmap: a layer fed by what was mapped")
def vmapped_input():
    def forward(net, x):
        return net.inner(torch.vmap(lambda row: row / row.abs().max())(x))

    return Written(forward, inner=mlp(6, 8, 2)), X


@FAMILY.entry("vmap: critics beside a plain trunk")
def vmapped_heads():
    def forward(net, x):
        h = F.relu(net.trunk(x))
        return torch.vmap(lambda w, v: F.elu(h @ w) @ v, out_dims=1)(net.w, net.v)

    return Written(forward, trunk=nn.Linear(6, 8), w=raw(5, 8, 8), v=raw(5, 8, 1)), X


@FAMILY.entry("vmap: of vmap")
def vmapped_twice():
    def forward(net, x):
        def one(w, v, row):
            return torch.tanh(row @ w) @ v

        return torch.vmap(torch.vmap(one, in_dims=(None, None, 0)), in_dims=(0, 0, None))(net.w, net.v, x)

    return Written(forward, w=raw(4, 6, 8), v=raw(4, 8, 2)), X


@FAMILY.entry("vmap: members on the last axis")
def vmapped_last():
    def forward(net, x):
        return torch.vmap(lambda w, v: torch.relu(x @ w) @ v, in_dims=(2, 0))(net.w, net.v)

    return Written(forward, w=nn.Parameter(torch.randn(6, 8, 3)), v=raw(3, 8, 2)), X
