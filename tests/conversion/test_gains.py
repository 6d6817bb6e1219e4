"""Gains: a small or zero layer as a matrix at full norm times a number, and the function as it was."""

from __future__ import annotations

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
from nap.norms.gain import Gain
from nap.weights import Role
from stream_nets import TOKENS, WIDTH, Branch, Language, language, learn

SMALL: dict[str, Any] = {"gains": "small"}
ENDS = ["c.0.two", "c.1.two"]
GAINED = [*ENDS, "e"]  # and the output layer


def both(net: nn.Module, example: Tensor, **options: Any) -> tuple[Any, Any, nap.Plan]:
    """The same network converted without gains and with them."""
    plain, gained = copy.deepcopy(net), copy.deepcopy(net)
    nap.normalize_(plain, example)
    return plain, gained, nap.normalize_(gained, example, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("share", [0.25, 0.0])
def test_the_function_stays_the_same_to_the_last_bit(share: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net: Any = Language(share=share, bias=True).to(dtype)
    for branch in net.c:
        branch.two.bias.data.normal_()
    plain, gained, plan = both(net, TOKENS, **SMALL)
    assert [p.module for p in plan.placements if p.action == "scale input"] == GAINED
    assert torch.equal(plain(TOKENS), gained(TOKENS))
    for branch in gained.c:  # at its fan-in radius, or as near to it as a power of two brings it
        assert 0.7 < branch.two.weight.norm() / WIDTH**0.5 < 1.42
    assert "gain of 0," in str(plan) if share == 0 else "of its fan-in radius" in str(plan)


def test_a_table_that_is_tied_gets_a_gain_for_each_of_its_uses() -> None:
    torch.manual_seed(0)
    plain, gained, plan = both(Language(tied=True), TOKENS, gains=["e", *ENDS])
    assert [p.module for p in plan.placements if p.action == "scale input"] == ["a", *ENDS, "e"]
    assert torch.equal(plain(TOKENS), gained(TOKENS))
    assert gained.a.weight is gained.e.weight
    assert "a.weight" in nap.Projector(gained).plan.names("project")
    nap.verify(gained, TOKENS)
    compiled: Any = torch.compile(gained, backend="aot_eager")
    assert_close(compiled(TOKENS), gained(TOKENS))


class Transposed(nn.Module):
    """A layer of one's own, weight (in, out), as GPT-2's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(0.01 * torch.randn(16, WIDTH)), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


class Bent(Transposed):
    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, torch.tanh(x), self.weight)


def stream(branch: Branch) -> nn.Module:
    return nn.Sequential(nn.Linear(5, WIDTH), branch, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))


def test_a_linear_layer_of_ones_own_gets_one_and_others_do_not() -> None:
    torch.manual_seed(0)
    branch: Any = Branch()
    branch.two = Transposed()
    x = torch.randn(4, 5)
    plain, gained, _ = both(stream(branch), x, **SMALL)
    assert isinstance(gained[1].two.nap_gain, Gain)
    assert torch.equal(plain(x), gained(x))
    branch.two = Bent()
    _, gained, plan = both(stream(branch), x, **SMALL)
    assert not any(isinstance(module, Gain) for module in gained.modules())
    notes = {note.name: note.reason for note in plan.left_alone}
    assert "no gain: 1.two (Bent) is not linear in its first input" in notes["1.two.weight"]


def test_convolutions_and_zero_heads_get_one() -> None:
    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 2))
    nn.init.zeros_(net[3].weight)
    x = torch.randn(2, 3, 6, 6)
    plain, gained, plan = both(net, x, **SMALL)
    assert [p.module for p in plan.placements] == ["0", "3"]
    assert torch.equal(plain(x), gained(x))
    assert gained[3].weight.norm().item() == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    ("gains", "words"),
    [
        ("large", "gains='large' is not a choice"),
        (["c.0.tow"], r"gains names 'c\.0\.tow', which is no module.*did you mean 'c\.0\.two'"),
        (["c.0.one"], r"'c\.0\.one', which is no output layer.*its role is scale-invariant"),
        (["c.0.drop"], r"'c\.0\.drop', which is no output layer.*has no weight"),
    ],
)
def test_a_gain_where_there_can_be_none_is_refused_and_the_model_stays(gains: Any, words: str) -> None:
    net = Language()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ValueError, match=words):
        nap.normalize_(net, TOKENS, gains=gains)
    assert_close(net.state_dict(), before, rtol=0, atol=0)


class AsFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.branch = nn.Embedding(11, WIDTH), Branch()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(self.branch(self.table(x))), self.table.weight)


def test_a_table_used_as_a_function_can_have_none() -> None:
    with pytest.raises(ValueError, match=r"table\.weight can have no gain: it is used inside the model"):
        nap.normalize_(AsFunction(), TOKENS, gains=["table"])


def test_planning_again_finds_nothing_and_the_plan_survives_a_file() -> None:
    torch.manual_seed(0)
    net = Language(share=0.0)
    twin = copy.deepcopy(net)
    plan = nap.normalize_(net, TOKENS, **SMALL)
    nap.verify(net, TOKENS)
    again = nap.Plan.from_json(plan.to_json())
    assert again == plan
    nap.normalize_(twin, again)
    assert_close(twin.state_dict(), net.state_dict(), rtol=0, atol=0)
    for loaded in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(loaded(TOKENS), net(TOKENS))
    other = Language(share=0.5)
    with pytest.raises(ValueError, match="not zero, which it was not when the plan was made"):
        nap.normalize_(other, again)
    assert not any(isinstance(module, Gain) for module in other.modules())


def test_roles_and_policies_of_a_gained_model() -> None:
    net = language(share=0.0, normalize=SMALL)
    table = nap.weight_groups(net)
    assert [row.name for row in table.of(Role.GAIN)] == [f"{end}.nap_gain.weight" for end in GAINED]
    plan = nap.Projector(net, affine="decay").plan
    assert {f"{end}.weight" for end in ENDS} <= set(plan.names("project"))
    assert plan.names("grow") == []
    assert {f"{end}.nap_gain.weight" for end in ENDS} <= set(plan.names("free"))


def test_the_first_update_moves_the_gain_and_then_the_matrix_learns() -> None:
    """A matrix of zeros has no direction: it gets a random one, and at gain 0 its own gradient is zero."""
    net = language(share=0.0, normalize=SMALL).double()
    layer = net.c[0].two
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    projector = nap.Projector(net).attach(optimizer)
    start = layer.weight.detach().clone()
    inputs: list[Tensor] = []
    layer.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()), prepend=True)
    gradients: list[Tensor] = []
    layer.register_full_backward_hook(lambda module, _, out: gradients.append(out[0]))
    first = learn(net, optimizer)
    assert_close(layer.weight, start, rtol=1e-15, atol=1e-15)  # projection may round its last digit
    assert not layer.weight.grad.any()
    expected = torch.einsum("bli,oi,blo->", inputs[0], start, gradients[0])  # ⟨W·x, δ⟩
    gain: Callable[[], float] = lambda: layer.nap_gain.weight.item()  # noqa: E731
    assert layer.nap_gain.weight.grad.item() == pytest.approx(expected.item(), rel=1e-9)
    assert abs(gain()) == pytest.approx(0.01, rel=1e-3)
    last = learn(net, optimizer, 100)
    assert last < first / 2
    assert not torch.equal(layer.weight, start)
    assert all(abs(ratio - 1) < 1e-6 for ratio in projector.norm_ratios().values())


def test_an_optimizer_from_before_the_conversion_is_told_that_it_trains_no_gain() -> None:
    net = Language(share=0.0)
    optimizer = torch.optim.Adam(net.parameters())
    nap.normalize_(net, TOKENS, affine="none", qk_norm=False, **SMALL)
    with pytest.raises(ValueError, match=r"built before nap\.normalize_.*c\.0\.two\.nap_gain\.weight"):
        nap.Projector(net).attach(optimizer)
