"""Nonlinearities without a name of their own: choices, masks, products with itself. Norms are none."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.weights import Role

X = torch.linspace(-2, 2, 24).sin().reshape(3, 8)


class Net(nn.Module):
    def __init__(self, curve, width: int, left: int):
        super().__init__()
        self.layer, self.head, self.curve = nn.Linear(8, width), nn.Linear(left, 2), curve

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.curve(self.layer(x)))


def zeroed(h: Tensor) -> Tensor:
    h[h < 0] = 0
    return h


def leaky(h: Tensor) -> Tensor:
    h = h.clone()
    h[h < 0] *= 0.1
    return h


def zeroed_through_a_view(h: Tensor) -> Tensor:
    flat = h.view(-1)
    flat[flat < 0] = 0
    return h


def pairs(h: Tensor) -> Tensor:
    return h.unflatten(-1, (8, 2))


def fourier(h: Tensor) -> Tensor:
    a, b = torch.fft.rfft(h[:, :8]), torch.fft.rfft(h[:, 8:])
    return torch.fft.irfft(a * b, 8)


WHOLE = {
    "amax": (lambda h: pairs(h).amax(-1), 16, 8),
    "max": (lambda h: pairs(h).max(-1)[0], 16, 8),
    "values": (lambda h: pairs(h).max(-1).values.neg(), 16, 8),
    "amin": (lambda h: pairs(h).amin(-1), 16, 8),
    "maximum": (lambda h: torch.maximum(h, h.flip(-1)), 8, 8),
    "pool": (lambda h: F.max_pool1d(h[:, None], 2)[:, 0], 16, 8),
    "sort": (lambda h: h.sort(-1)[0], 8, 8),
    "top-k": (lambda h: h.topk(4, -1)[0], 8, 4),
    "gathered top-k": (lambda h: h.gather(-1, h.topk(4, -1)[1]), 8, 4),
    "masked top-k": (lambda h: h * torch.zeros(3, 8).scatter(-1, h.topk(4, -1)[1], 1.0), 8, 8),
    "winner": (lambda h: h * F.one_hot(h.argmax(-1), 8), 8, 8),
    "assigned": (zeroed, 8, 8),
    "leaky": (leaky, 8, 8),
    "view": (zeroed_through_a_view, 8, 8),
    "index_put": (lambda h: h.index_put((h < 0,), torch.zeros(())), 8, 8),
    "masked_scatter": (lambda h: torch.zeros(3, 8).masked_scatter(h > 0, h[h > 0]), 8, 8),
    "square": (lambda h: h * h, 8, 8),
    "square and itself": (lambda h: h * h + h, 8, 8),
    "halves": (lambda h: h[:, :8] * h[:, 8:], 16, 8),
    "outer": (lambda h: torch.einsum("bi,bj->bij", h, h).flatten(1), 8, 64),
    "Gram": (lambda h: h @ h.T, 8, 3),
    "Fourier": (fourier, 16, 8),
    "median": (lambda h: pairs(h).median(-1).values, 16, 8),
    "quantile": (lambda h: h - h.quantile(0.3, dim=-1, keepdim=True), 8, 8),
    "cummax": (lambda h: h.cummax(-1)[0], 8, 8),
    "unique": (lambda h: h.unique(dim=0), 8, 8),
    "step": (lambda h: (h > 0.1).float(), 8, 8),
    "signs": (lambda h: torch.where(h > 0, 1.0, -1.0), 8, 8),
    "rounded": (lambda h: (3 * h).long().float(), 8, 8),
    "scatter": (
        lambda h: torch.zeros(3, 4).scatter_reduce(1, torch.arange(8).expand(3, 8) % 4, h, "amax"), 8, 4
    ),
    "division": (lambda h: h / h.flip(-1), 8, 8),
    "by the largest": (lambda h: h / h.abs().amax(-1, keepdim=True), 8, 8),
    "norm after it": (lambda h: F.layer_norm(pairs(h).amax(-1), (8,)), 16, 8),
    "norm after a square": (lambda h: F.layer_norm(h * h, (8,)), 8, 8),
    "lerp": (lambda h: torch.lerp(h, h.flip(-1), h), 8, 8),
    "logarithm": (lambda h: (h.abs() + 1).log(), 8, 8),
    "logarithm of a square": (lambda h: (h * h + 0.1).log(), 8, 8),
    "addcmul": (lambda h: torch.addcmul(h, h, h), 8, 8),
}  # fmt: skip


@pytest.mark.parametrize(("curve", "width", "left"), WHOLE.values(), ids=WHOLE.keys())
def test_the_layer_in_front_gets_a_norm(curve, width, left):
    model = Net(curve, width, left).eval()
    plan = nap.normalize_(model, X)
    assert [p.module for p in plan.placements] == ["layer"]
    assert plan.weights["layer.weight"].role is Role.SCALE_INVARIANT
    with torch.no_grad():
        before = model(X)
        model.layer.weight.mul_(7)
        torch.testing.assert_close(model(X), before, rtol=1e-4, atol=1e-4)


def test_a_gate_by_comparison_needs_a_norm_where_it_is_compared():
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value, self.gate, self.head = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.value(x) * (self.gate(x) > 0.5))

    (placement,) = nap.plan(Gate(), X).placements
    assert (placement.module, placement.reason) == ("gate", "enters gt")


def test_of_a_fused_layer_the_compared_part_gets_it():
    plan = nap.plan(Net(lambda h: h[:, :8] * (h[:, 8:] > 0), 16, 8), X)
    (placement,) = plan.placements
    assert [s.name for s in placement.sections] == [None, "part"]


def test_at_the_output_a_choice_needs_nothing():
    class Largest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).amax(-1)

    assert nap.plan(Largest(), X).placements == ()


LINEAR = {
    "rms by hand": lambda h: h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-6),
    "standardised": lambda h: (h - h.mean(-1, keepdim=True)) / h.std(-1, keepdim=True),
    "unit": F.normalize,
    "Fourier and back": lambda h: torch.fft.irfft(torch.fft.rfft(h), 8),
    "chosen by others": lambda h: h[:, torch.arange(8).flip(0)],
}


@pytest.mark.parametrize("curve", LINEAR.values(), ids=LINEAR.keys())
def test_norms_and_linear_maps_get_none(curve):
    assert nap.plan(Net(curve, 8, 8), X).placements == ()


def test_a_square_inside_the_module_that_multiplies_is_normalised_before_it():
    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight) ** 2

    model = nn.Sequential(Squared(), nn.Linear(8, 2))
    (placement,) = nap.normalize_(model, X).placements
    assert (placement.module, placement.action, placement.reason) == ("0", "normalise product", "enters pow")
    assert nap.verify(model, X).scale_invariant == 1


def test_a_router_that_picks_from_its_logits_is_left_alone():
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts = nn.Linear(8, 3), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            best, index = self.router(x).topk(2, -1)
            share = best.softmax(-1)
            out = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                row, place = (index == number).nonzero(as_tuple=True)
                out = out.index_add(0, row, expert(x[row]) * share[row, place, None])
            return self.head(F.relu(out))

    plan = nap.plan(Router(), X)
    assert {p.module for p in plan.placements} == {f"experts.{i}" for i in range(3)}
    assert [note.name for note in plan.left_alone] == ["router"]
