"""Weights that a module uses in a function: the norm is on the product, right where it is made."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import nap
from nap import Role
from nap.conversion import surgery
from nap.norms.norm import FusedNorm, Norm
from nap.norms.products import product_norms
from zoo.soundness import unsound
from zoo.written import Written

X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))


class Raw(nn.Module):
    """A product, a ReLU and another product, all in one forward."""

    def __init__(self, product: Callable[[Any, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.w = nn.Parameter(torch.randn(*shape, generator=generator) / 3)
        self.b, self.g = nn.Parameter(torch.randn(16, generator=generator)), nn.Parameter(torch.ones(16, 1))
        self.register_buffer("mask", torch.eye(16, 8) + 1)
        self.inner, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.product(self, x)))


def written_into(m: Any, x: Tensor) -> Tensor:
    y = x @ m.w
    y += m.b
    return y


def chunked(m: Any, x: Tensor) -> Tensor:
    return torch.stack([x[..., :4] @ m.w[:4], x[..., 4:] @ m.w[4:]]).sum(0)


def steps(m: Any, x: Tensor) -> Tensor:
    return torch.stack([F.linear(x[:, t], m.w, m.b) for t in range(x.shape[1])], 1)


PRODUCTS: dict[str, tuple[Callable[[Any, Tensor], Tensor], tuple[int, ...]]] = {
    "linear": (lambda m, x: F.linear(x, m.w), (16, 8)),
    "linear with a bias": (lambda m, x: F.linear(x, m.w, m.b), (16, 8)),
    "linear by names": (lambda m, x: F.linear(input=x, weight=m.w, bias=m.b), (16, 8)),
    "a bias that is added later": (lambda m, x: F.linear(x, m.w) + m.b, (16, 8)),
    "written into": (written_into, (8, 16)),
    "at": (lambda m, x: x @ m.w, (8, 16)),
    "transposed": (lambda m, x: x @ m.w.t(), (16, 8)),
    "from the left": (lambda m, x: (m.w @ x.mT).mT, (16, 8)),
    "einsum": (lambda m, x: torch.einsum("bti,io->bto", x, m.w), (8, 16)),
    "addmm": (lambda m, x: torch.addmm(m.b, x.flatten(0, 1), m.w).view(3, 5, 16), (8, 16)),
    "baddbmm": (lambda m, x: torch.baddbmm(m.b, x, m.w.expand(3, 8, 16)), (8, 16)),
    "conv1d": (lambda m, x: F.conv1d(x.mT, m.w, m.b, padding=1).mT, (16, 8, 3)),
    "causal conv1d": (lambda m, x: F.conv1d(x.mT, m.w, bias=m.b, padding=2)[..., :5].mT, (16, 8, 3)),
    "in its own scale": (lambda m, x: F.linear(x, m.g * m.w), (16, 8)),
    "masked by a buffer": (lambda m, x: F.linear(x, m.w * m.mask), (16, 8)),
    "a time step at a time": (steps, (16, 8)),
    "another module's weight": (lambda m, x: F.linear(x, m.inner.weight, m.inner.bias), (1, 1)),
    "another module's forward": (lambda m, x: m.inner.forward(x), (1, 1)),
    "an expert that is chosen": (lambda m, x: x @ m.w[x.argmax() % 2], (2, 8, 16)),
}


def weights_of(model: nn.Module) -> list[str]:
    table = nap.weight_groups(model)
    return [row.name for row in table.of(Role.SCALE_INVARIANT)]


@pytest.mark.parametrize(("product", "shape"), PRODUCTS.values(), ids=PRODUCTS.keys())
@pytest.mark.parametrize("nested", [False, True])
def test_a_product_is_normalised_where_it_is_made(product: Any, shape: Any, nested: bool) -> None:
    model: Any = Raw(product, *shape)
    model = nn.Sequential(model, nn.Linear(3, 2)) if nested else model
    plan = nap.normalize_(model, X)
    assert [(p.module, p.action) for p in plan.placements] == [("0" * nested, "normalise product")]
    scaled = {name for name in weights_of(model) if name.endswith(("w", "g", "inner.weight"))}
    assert len(scaled) == (2 if "g" in {name[-1] for name in scaled} else 1)
    assert nap.verify(model, X).scale_invariant == len(scaled)
    assert nap.plan(model, X).placements == ()


def test_it_computes_the_norm_of_the_product_and_leaves_the_bias_out() -> None:
    model = Raw(PRODUCTS["linear with a bias"][0], 16, 8)
    nap.normalize_(model, X, eps=1e-5)
    assert_close(model(X), model.head(F.layer_norm(F.linear(X, model.w), (16,), eps=1e-5).relu()))
    assert not model.b.any()
    assert not model.b.requires_grad
    old = Raw(PRODUCTS["linear with a bias"][0], 16, 8).state_dict()
    model.load_state_dict({**model.state_dict(), **old})
    assert not model.b.any()


def test_a_bias_that_is_added_later_stays_in_the_place_of_an_offset() -> None:
    model = Raw(PRODUCTS["a bias that is added later"][0], 16, 8)
    before = model.b.detach().clone()
    nap.normalize_(model, X, eps=1e-5)
    assert torch.equal(model.b, before)
    assert [name for name, _ in product_norms(model)["w"].named_parameters()] == ["weight"]
    expected = model.head((F.layer_norm(F.linear(X, model.w), (16,), eps=1e-5) + model.b).relu())
    assert_close(model(X), expected)


@pytest.mark.parametrize(
    "name", ["linear with a bias", "conv1d", "in its own scale", "another module's weight"]
)
def test_it_is_compiled_copied_pickled_saved_and_trained(name: str) -> None:
    product, shape = PRODUCTS[name]
    model = Raw(product, *shape)
    nap.normalize_(model, X)
    model.product = globals()["keep_product"](name)
    expected = model(X)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.__dict__["forward"].module is twin
        assert_close(twin(X), expected)
    compiled: Any = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_close(compiled(X), expected)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    projector = nap.Projector(model).attach(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
    assert projector.norm_ratios() == pytest.approx(dict.fromkeys(projector.norm_ratios(), 1.0), abs=1e-5)
    fresh = Raw(product, *shape)
    nap.normalize_(fresh, X)
    fresh.load_state_dict(model.state_dict())
    assert_close(fresh(X), model(X))


class Named:
    """A product that can be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, m: Any, x: Tensor) -> Tensor:
        return PRODUCTS[self.name][0](m, x)


def keep_product(name: str) -> Any:
    return Named(name)


class Attention(nn.Module):
    """As BEiT and Swin v2 write it: one projection, whose bias is put together in every forward."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(8, 24, bias=False), nn.Linear(8, 8)
        self.q_bias, self.v_bias = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.cat([self.q_bias, torch.zeros_like(self.v_bias), self.v_bias])
        qkv = F.linear(x, weight=self.qkv.weight, bias=bias).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return self.out((F.scaled_dot_product_attention(q, k, v)).transpose(1, 2).flatten(2))


def test_queries_and_keys_of_a_projection_in_a_function_are_normalised_per_head() -> None:
    model = Attention()
    plan = nap.normalize_(model, X, eps=1e-5)
    assert plan.placements[0].what == "RMSNorm on q and k, per head of 4 in the product of qkv.weight"
    norm = product_norms(model)["qkv_weight"]
    assert isinstance(norm, FusedNorm)
    q, k, v = F.linear(X, model.qkv.weight).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    q, k = F.rms_norm(q, (4,), eps=1e-5), F.rms_norm(k, (4,), eps=1e-5)
    v = v + model.v_bias.view(2, 1, 4)
    gain = norm.norms[0].gain
    by_hand = F.scaled_dot_product_attention(gain * q, gain * k, v).transpose(1, 2).flatten(2)
    assert_close(model(X), model.out(by_hand))
    nap.verify(model, X)


class Shared(nn.Module):
    """One activation for two products, one of them behind a norm that the model has already."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(8, 16)), nn.Parameter(torch.randn(16, 12))
        self.three = nn.Parameter(torch.randn(12, 6))
        self.act, self.norm = nn.ReLU(), nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(x @ self.one)
        return self.act(self.norm(x @ self.two)) @ self.three


def test_products_that_share_an_activation_have_norms_of_their_own() -> None:
    model = Shared()
    plan = nap.normalize_(model, X)
    assert [p.weights for p in plan.placements] == [("one",)]
    assert not hasattr(model.act, "nap_norm")
    nap.verify(model, X)


class Handed(nn.Module):
    """A weight's parts are handed to the module that multiplies: it never sees where they come from."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.head = Expert(), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(sum(self.mlp(x, part) for part in self.mlp.w.view(2, 8, 16).unbind()))


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.act = nn.Parameter(torch.randn(16, 16)), nn.ReLU()

    def forward(self, x: Tensor, part: Tensor) -> Tensor:
        return self.act(x @ part)


def test_where_a_product_cannot_be_followed_the_norm_is_on_the_activation() -> None:
    model = Handed()
    plan = nap.normalize_(model, X)
    assert [(p.module, p.action) for p in plan.placements] == [("mlp.act", "normalise input")]
    nap.verify(model, X)


# -- what is refused, or left as it is -------------------------------------------------------------


class Tied(nn.Module):
    """The product of one weight is hidden, and an output."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x @ self.w) @ self.w


class Halves(nn.Module):
    """Two products of parts of one weight, of which one is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = nn.Parameter(torch.randn(8, 32)), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(x @ self.w[:, :16]) + x @ self.w[:, 16:])


class Correction(nn.Module):
    """LoRA in the forward of a larger module: a norm of its own would blow the correction up."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(8, 16), nn.Linear(16, 2)
        self.A, self.B = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.randn(2, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.base(x) + x @ self.A @ self.B))


def test_of_two_halves_of_a_weight_the_hidden_one_has_a_norm() -> None:
    model = Halves()
    x = torch.randn(3, 8)
    with torch.no_grad():
        half = F.layer_norm(x @ model.w[:, :16], (16,), eps=0)
        expected = model.head(F.relu(half) + x @ model.w[:, 16:])
    nap.normalize_(model, x)
    torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
    assert nap.weight_groups(model)["w"].role is nap.Role.JOINT
    nap.verify(model, x)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Tied, "w: its product enters relu inside the network and is also returned as an output"),
        (Correction, "B: its product enters relu before the model returns, so there is no place"),
    ],
)
def test_a_weight_that_is_used_in_several_ways_is_refused(kind: Any, why: str) -> None:
    model = kind()
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match=why):
        nap.normalize_(model, X)
    assert list(model.state_dict()) == keys
    assert "forward" not in model.__dict__


@pytest.mark.parametrize("options", [{"exclude": ["inner"]}, {"allow": ["inner.weight"]}])
def test_what_is_excluded_or_was_accepted_stays_as_it_is(options: Any) -> None:
    model = Raw(PRODUCTS["another module's weight"][0], 1, 1)
    assert nap.normalize_(model, X, **options).placements == ()
    assert nap.weight_groups(model)["inner.weight"].role is Role.UNNORMALISED
    nap.verify(model, X)


def test_a_failure_undoes_it_and_a_forward_that_was_lost_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model, insert = Raw(PRODUCTS["linear"][0], 16, 8), surgery._insert_
    plan, before = nap.plan(model, X), model(X)

    def fail(*args: Any) -> None:
        insert(*args)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(surgery, "_insert_", fail)
        with pytest.raises(MemoryError):
            nap.normalize_(model, plan)
    assert torch.equal(model(X), before)
    assert not any(isinstance(module, Norm) for module in model.modules())
    nap.normalize_(model, nap.Plan.from_json(plan.to_json()))
    with pytest.raises(ValueError, match="already carries a norm"):
        nap.normalize_(model, plan)
    del model.__dict__["forward"]
    with pytest.raises(ValueError, match=r"norms of .* no longer run"):
        nap.verify(model, X)
    assert nap.weight_groups(model)["w"].role is Role.WEIGHT


class Experts(nn.Module):
    """Tokens that choose experts by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.head = nn.Parameter(torch.randn(4, 8, 16)), nn.Linear(16, 3)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        up = self.up[chosen].transpose(-1, -2).contiguous()
        return self.head(F.relu(torch.einsum("ni,nhi->nh", x, up)))


def test_the_norm_of_a_token_does_not_depend_on_what_others_choose() -> None:
    torch.manual_seed(0)
    model, x = Experts(), torch.randn(64, 8)
    nap.normalize_(model, (x, torch.arange(64) % 4))
    model = model.double()
    with torch.no_grad():
        model.up.mul_(torch.tensor([1e-3, 0.1, 1.0, 10.0])[:, None, None])
        x = x.double()
        alone = model(x[:1], torch.tensor([1]))
        for others in (torch.zeros(63), torch.full((63,), 3)):
            together = model(x, torch.cat([torch.tensor([1]), others.long()]))
            assert_close(together[:1], alone, rtol=0, atol=1e-12)


TRANSFORMED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "exp": lambda m, x: x @ m.w.exp(),
    "softmax": lambda m, x: x @ m.w.softmax(0),
    "rounded, straight through": lambda m, x: x @ (m.w + (m.w.mul(8).round().div(8) - m.w).detach()),
    "ternary": lambda m, x: x @ (m.w.sign() * (m.w.abs() > m.w.abs().mean()) * m.w.abs().mean()),
    "standardised by batch_norm": lambda m, x: x @ F.batch_norm(m.w[None], None, None, m.s, training=True)[0],
    "orthogonal, exponential": lambda m, x: x @ m.w[:, :8].sub(m.w[:, :8].T).matrix_exp(),
    "orthogonal, Cayley": lambda m, x: x @ torch.linalg.solve(torch.eye(8) + skew(m.w), torch.eye(8)),
    "masked by another's median": lambda m, x: x @ (m.w * (m.v > m.v.median())),
}


def skew(w: Tensor) -> Tensor:
    return w[:, :8] - w[:, :8].T


@pytest.mark.parametrize("name", TRANSFORMED)
def test_weights_that_functions_transform_first_are_normalised_where_they_multiply(name: str) -> None:
    torch.manual_seed(0)
    model = Written(
        lambda net, x: net.head(F.relu(TRANSFORMED[name](net, x)) @ net.fit),
        w=nn.Parameter(torch.randn(8, 16) / 3),
        v=nn.Parameter(torch.randn(8, 16)),
        s=nn.Parameter(torch.rand(8) + 0.5),
        head=nn.Linear(3, 2),
        fit=torch.ones(8 if "orthogonal" in name else 16, 3),
    )
    plan = nap.normalize_(model, X)
    assert [p.action for p in plan.placements] == ["normalise product"]
    assert unsound(model, plan, (X,), {}) == []
    nap.verify(model, X)
