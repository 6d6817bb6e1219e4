"""Queries, keys and values by slices of one weight, as `F.multi_head_attention_forward` writes them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nap
from zoo.written import Written

X = torch.linspace(-1, 1, 80).cos().reshape(2, 5, 8)


def sliced(cast: bool = False, width: int = 8) -> Written:
    def forward(net, x):
        weights, biases = net.weight.chunk(3), net.bias.split(width)
        if cast:
            weights, biases = ([p.to(x.dtype) for p in parts] for parts in (weights, biases))
        q, k, v = (F.linear(x, w, b) for w, b in zip(weights, biases, strict=True))
        return net.out(F.scaled_dot_product_attention(q, k, v))

    torch.manual_seed(0)
    parts = {"weight": torch.randn(3 * width, width) / width**0.5, "bias": torch.randn(3 * width)}
    return Written(forward, **{n: nn.Parameter(p) for n, p in parts.items()}, out=nn.Linear(width, 3))


class Apart(nn.Module):
    def __init__(self, like: Written):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.out = like.get_submodule("out")
        weights, biases = like.get_parameter("weight").chunk(3), like.get_parameter("bias").chunk(3)
        with torch.no_grad():
            for layer, weight, bias in zip((self.q, self.k, self.v), weights, biases, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)

    def forward(self, x):
        return self.out(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x)))


@pytest.mark.parametrize("cast", [False, True])
def test_slices_are_normalised_as_layers_of_their_own(cast: bool):
    net = sliced(cast)
    apart = Apart(net)
    plan = nap.normalize_(net, X)
    nap.normalize_(apart, X)
    assert [p.what for p in plan.placements] == [
        "RMSNorm on q, per head of 8 in the product of weight from 0",
        "RMSNorm on k, per head of 8 in the product of weight from 64",
    ]
    torch.testing.assert_close(net(X), apart(X))
    nap.verify(net, X)
    if cast:  # copies of the slices, when it runs in another dtype than it was planned in
        net.get_submodule("out").double()
        torch.testing.assert_close(net(X.double()), apart.double()(X.double()), rtol=1e-6, atol=1e-6)


def test_their_plan_is_saved_and_applied():
    net, other = sliced(), sliced()
    nap.normalize_(other, nap.Plan.from_json(nap.plan(net, X).to_json()))
    nap.normalize_(net, X)
    assert torch.equal(net(X), other(X))
    with pytest.raises(ValueError, match="already carries a norm"):
        nap.normalize_(other, nap.plan(sliced(), X))


def test_large_weights_without_values_are_sliced_alike():
    wide = nap.plan(sliced(width=1200), torch.randn(1, 3, 1200))
    assert not wide.problems
    assert [p.part[0] for p in wide.placements] == [0, 1200 * 1200]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # the compiler's, at a graph break
def test_slices_compile():
    net = sliced()
    nap.normalize_(net, X)
    compiled = torch.compile(net, backend="eager")
    torch.testing.assert_close(compiled(X), net(X))
