"""Each refusal that users meet has a way out, and the way out was tried."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.weights import PLAN_ATTRIBUTE
from zoo.soundness import unsound
from zoo.written import Written, mlp

X = torch.linspace(-1, 1, 24).reshape(4, 6).sin()
STREAM = torch.linspace(-2, 2, 80).reshape(2, 5, 8).sin()


def raw(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


def recurrent() -> nn.Module:
    return Written(
        lambda net, s: net.head(net.rnn(s)[0]), rnn=nn.GRU(8, 6, batch_first=True), head=nn.Linear(6, 2)
    )


def hidden_and_output() -> nn.Module:
    def forward(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return (h := net.a(x)), net.b(h.relu())

    return Written(forward, a=nn.Linear(6, 8), b=nn.Linear(8, 2))


def over_positions() -> nn.Module:
    def forward(net: Any, s: Tensor) -> Tensor:
        return net.head(net.v(s) @ (net.q(s).mT @ net.k(s)).softmax(-1).mT)

    return Written(forward, **{name: nn.Linear(8, 8) for name in "qkv"}, head=nn.Linear(8, 2))


def rare() -> nn.Module:
    return Written(lambda net, x: net.b(torch.special.erfcx(net.a(x))), a=nn.Linear(6, 8), b=nn.Linear(8, 2))


def logarithm() -> nn.Module:
    return Written(
        lambda net, x: net.b((1e-3 + net.a(x.square())).log()), a=nn.Linear(6, 8), b=nn.Linear(8, 2)
    )


def inverse() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.b((x @ torch.inverse(net.w + 3 * torch.eye(6).to(x))).relu())

    return Written(forward, w=raw(6, 6), b=nn.Linear(6, 2))


def divisive() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.a(x).relu()
        return net.b(h / (1.0 + h @ net.w.T))

    return Written(forward, a=nn.Linear(6, 8), w=nn.Parameter(raw(8, 8).detach().abs()), b=nn.Linear(8, 2))


def frequencies() -> nn.Module:
    def forward(net: Any, s: Tensor) -> Tensor:
        low = torch.fft.rfft(s, dim=1) @ torch.view_as_complex(net.w)
        return net.b(F.gelu(torch.fft.irfft(low, n=5, dim=1)))

    return Written(forward, w=raw(8, 8, 2), b=nn.Linear(8, 2))


def shared_table(*activations: nn.Module) -> Written:
    def forward(net: Any, x: Tensor) -> Tensor:
        first, last = net.acts[0], net.acts[-1]
        return net.head(last(net.two(x + first(F.embedding(torch.arange(4), net.one)))))

    return Written(
        forward, one=raw(4, 6), two=nn.Linear(6, 8), acts=nn.ModuleList(activations), head=nn.Linear(8, 2)
    )


def straddling() -> nn.Module:
    """Queries have two heads; keys are seen again with their features rolled from one head to the other."""

    def forward(net: Any, s: Tensor) -> Tensor:
        q, k, v = net.qkv(s).chunk(3, -1)
        seen = torch.cat([k, k.roll(2, -1)], 1)
        logits = torch.einsum("bthd,bshd->bhts", q.unflatten(-1, (2, 4)), seen.unflatten(-1, (2, 4)))
        return net.head(logits.softmax(-1).mean(1) @ torch.cat([v, v], 1))

    return Written(forward, qkv=nn.Linear(8, 24), head=nn.Linear(8, 2))


class Threshold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = (x - x.max(-1, keepdim=True).values + 1).clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradients[0] * (y > 0)


class Selector(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Threshold.apply(x)


def own_gradient() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        value, mask = net.both(x).chunk(2, -1)
        return net.head(value * net.selector(mask))

    return Written(forward, both=nn.Linear(6, 16), selector=Selector(), head=nn.Linear(8, 2))


def derivative() -> Written:
    def forward(net: Any, x: Tensor) -> Tensor:
        return torch.vmap(torch.func.grad(lambda z: net.energy(z).sum()))(x)

    return Written(forward, energy=mlp(6, 8, 1, nn.Tanh))


WAYS: list[tuple[Callable[[], nn.Module], Tensor, str, dict[str, Any]]] = [
    (recurrent, STREAM, "rnn='layernorm'", {"rnn": "layernorm"}),
    (recurrent, STREAM, "gates inside", {"exclude": ["rnn"]}),
    (hidden_and_output, X, "also returned as an output", {"allow": ["a"]}),
    (over_positions, STREAM, "over positions, not over features", {"allow": ["q", "k"]}),
    (over_positions, STREAM, "over positions, not over features", {"qk_norm": False}),
    (straddling, STREAM, "qkv: which of its features reach softmax is unclear", {"allow": ["qkv"]}),
    (own_gradient, X, "activations=['selector']", {"activations": ["selector"]}),
    (rare, X, "erfcx, which is not known", {"activations": ["erfcx"]}),
    (rare, X, "erfcx, which is not known", {"allow": ["erfcx"]}),
    (logarithm, X, "does not accept negative numbers", {"allow": ["a.weight"]}),
    (frequencies, STREAM, "with complex numbers", {"allow": ["w"]}),
    (divisive, X, "enters a division by positive numbers", {"allow": ["w"]}),
    (lambda: shared_table(nn.ReLU()), X, "called 2 times", {"allow": ["one"]}),
]


@pytest.mark.parametrize(
    ("build", "x", "refusal", "options"),
    WAYS,
    ids=lambda v: getattr(v, "__name__", None) or (str(v) if isinstance(v, dict) else None),
)
def test_what_is_refused_is_converted_with_the_option_that_is_named(build, x, refusal, options):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=re.escape(refusal)):
        nap.normalize_(build(), x)
    torch.manual_seed(0)
    model = build().eval()
    nap.normalize_(model, x, **options)
    nap.verify(model, x)
    assert unsound(model, vars(model)[PLAN_ATTRIBUTE], (x,), {}) == []


def test_an_activation_of_its_own_takes_the_norm_of_a_table():
    model = shared_table(nn.ReLU(), nn.ReLU())
    assert [p.module for p in nap.normalize_(model, X).placements] == ["two", "acts.0"]
    nap.verify(model, X)


def test_the_part_that_is_differentiated_is_converted_alone():
    model = derivative()
    with pytest.raises(ValueError, match=r"takes derivatives.*convert that part alone"):
        nap.normalize_(model, X)
    nap.normalize_(model.energy, X)
    nap.verify(model.energy, X)
    assert model(X).isfinite().all()
