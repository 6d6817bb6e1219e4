"""Stacks of layers (members, in, out): each member has a scale and an offset of its own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import nap
from nap import Role
from nap.norms.members import MemberNorm

MEMBERS, X = 4, torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Stack(nn.Module):
    def __init__(self, product: Callable[[Any, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.w = nn.Parameter(torch.randn(MEMBERS, 8, 16, generator=generator))
        self.b = nn.Parameter(torch.randn(*shape, generator=generator))
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self, x)


STACKS: dict[str, tuple[Callable[[Any, Tensor], Tensor], tuple[int, ...]]] = {
    "matmul": (lambda m, x: x @ m.w + m.b, (MEMBERS, 1, 16)),
    "baddbmm": (lambda m, x: torch.baddbmm(m.b, x.expand(MEMBERS, 3, 8), m.w), (MEMBERS, 1, 16)),
    "einsum": (lambda m, x: torch.einsum("bi,eio->ebo", x, m.w) + m.b[:, None], (MEMBERS, 16)),
    "einsum, members second": (lambda m, x: torch.einsum("bi,eio->beo", x, m.w) + m.b, (MEMBERS, 16)),
    "a common bias": (lambda m, x: x @ m.w + m.b, (16,)),
}


class Whole(nn.Module):
    """The stack is a module in it, or its own forward does all of it."""

    def __init__(self, stack: Stack, apart: bool) -> None:
        super().__init__()
        self.stack, self.head, self.apart = stack, nn.Linear(16, 2), apart

    def forward(self, x: Tensor) -> Tensor:
        y = self.stack(x) if self.apart else self.stack.product(self.stack, x)
        return self.head(F.relu(y))


def members_of(model: nn.Module) -> MemberNorm:
    (norm,) = (m for m in model.modules() if isinstance(m, MemberNorm))
    return norm


@pytest.mark.parametrize(("product", "shape"), STACKS.values(), ids=STACKS.keys())
@pytest.mark.parametrize("apart", [True, False])
def test_each_member_has_a_scale_and_an_offset_and_is_scale_invariant(
    product: Any, shape: Any, apart: bool
) -> None:
    model = Whole(Stack(product, *shape), apart).double()
    plan = nap.normalize_(model, X)
    assert plan.placements[0].members == (MEMBERS,)
    assert nap.Plan.from_json(plan.to_json()) == plan
    norm, row = members_of(model), nap.weight_groups(model)["stack.w"]
    assert norm.weight is not None
    assert norm.weight.shape == (MEMBERS, 16)
    assert (row.role, row.stacked) == (Role.SCALE_INVARIANT, 1)
    nap.verify(model, X)
    before = model(X)
    model.stack.w.data.mul_(torch.linspace(0.3, 20, MEMBERS, dtype=torch.float64)[:, None, None])
    assert_close(model(X), before, rtol=1e-11, atol=1e-11)
    if apart:  # what is added later, in the same forward, stays in the place of the offset
        assert not model.stack.b.any()
        assert norm.bias is not None


def test_members_are_those_of_single_networks() -> None:
    model = Whole(Stack(STACKS["matmul"][0], MEMBERS, 1, 16), apart=True).double()
    nap.normalize_(model, X)
    norm = members_of(model)
    nn.init.normal_(norm.weight)  # type: ignore[arg-type]
    nn.init.normal_(norm.bias)  # type: ignore[arg-type]
    for k in range(MEMBERS):
        layer = nn.Linear(8, 16).double()
        layer.weight.data = model.stack.w.data[k].T.clone()
        single = nn.Sequential(layer, nn.ReLU(), model.head)
        nap.normalize_(single, X)
        layer.nap_norm.weight.data = norm.weight.data[k]  # type: ignore[union-attr]
        layer.nap_norm.bias.data = norm.bias.data[k]  # type: ignore[union-attr]
        assert_close(model(X)[k], single(X))


def test_scales_and_offsets_are_projected_member_by_member() -> None:
    model = Whole(Stack(STACKS["matmul"][0], MEMBERS, 1, 16), apart=True).double()
    nap.normalize_(model, X)
    projector, norm = nap.Projector(model, affine="joint", output="free"), members_of(model)
    assert norm.weight is not None
    assert norm.bias is not None
    nn.init.uniform_(norm.weight, 1, 3)
    nn.init.normal_(norm.bias)
    projector.project_()
    sizes = norm.weight.square().sum(-1) + norm.bias.square().sum(-1)
    assert_close(sizes, torch.full((MEMBERS,), 16.0, dtype=torch.float64))


def test_weights_that_data_chooses_share_one_norm() -> None:
    chosen = lambda m, x: torch.bmm(x[:, None], m.w[x.argmax(-1) % MEMBERS])[:, 0] + m.b  # noqa: E731
    model = Whole(Stack(chosen, 16), apart=True).double()
    plan = nap.normalize_(model, X)
    assert plan.placements[0].members == ()
    nap.verify(model, X)


def test_networks_that_are_converted_before_they_are_stacked_run_under_vmap() -> None:
    members = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).double() for _ in range(MEMBERS)]
    for member in members:
        nap.normalize_(member, X)
        nn.init.normal_(member[0].nap_norm.weight)  # type: ignore[union-attr, arg-type]
    parameters, buffers = torch.func.stack_module_state(members)

    def run(own: Any, x: Tensor) -> Tensor:
        return torch.func.functional_call(members[0], own, (x,))

    together = torch.func.vmap(run, in_dims=(0, None))({**parameters, **buffers}, X)
    assert_close(together, torch.stack([member(X) for member in members]))
