"""Planning and converting: read-only the one, all or nothing the other, with errors that name the cause."""

import copy
from dataclasses import dataclass
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nap
from nap.conversion import surgery
from nap.norms.norm import Norm
from small_nets import every_net, mlp


def snapshot(model: nn.Module) -> list:
    """All that a caller could see of a model, apart from its results."""
    seen: list = []
    for name, module in model.named_modules():
        tables = {key: table for key, table in vars(module).items() if isinstance(table, dict)}
        seen += [
            name,
            type(module),
            list(vars(module)),
            [[*map(id, t.values()), *t] for t in tables.values()],
        ]
        seen += [(p.detach().clone(), p.requires_grad, p.grad) for p in module.parameters(recurse=False)]
        seen += [buffer.clone() for buffer in module.buffers(recurse=False)]
    return seen


def assert_unchanged(before: list, after: list) -> None:
    flat = torch.utils._pytree.tree_leaves((before, after))
    half = len(flat) // 2
    for a, b in zip(flat[:half], flat[half:], strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


# planning leaves no trace


class Stateful(nn.Module):
    """BatchNorm statistics, a counter, dropout, a kept graph and an input that is written to."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x.mul_(2)
        self.kept = F.dropout(self.norm(self.layer(x)).relu(), 0.5, training=True)
        return self.head(self.kept) + torch.randn(3)


def test_planning_leaves_model_inputs_and_randomness_as_they_were(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeds every GPU"))
    model, x = Stateful().train(), torch.randn(4, 8)
    model(x.clone()).sum().backward()
    model.layer.weight.requires_grad_(False)
    before, kept, given = snapshot(model), model.kept, x.clone()
    generator = torch.get_rng_state()
    nap.plan(model, x)
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(x, given)
    assert model.kept is kept
    assert_unchanged(before, snapshot(model))


# all or nothing


@every_net
def test_a_failure_on_the_way_undoes_everything(build, inputs, monkeypatch):
    model, x = build().eval(), inputs(3)
    model.memory = {"shared": [1]}
    plan = nap.plan(model, x)
    before, out, memory = snapshot(model), model(x), model.memory
    insert, count = surgery._insert_, iter(range(len(plan.placements)))

    def fail_at_the_last(*args):
        insert(*args)
        if next(count) == len(plan.placements) - 1:
            raise MemoryError("no room")

    monkeypatch.setattr(surgery, "_insert_", fail_at_the_last)
    with pytest.raises(MemoryError):
        nap.normalize_(model, plan)
    assert_unchanged(before, snapshot(model))
    assert torch.equal(model(x), out)
    assert model.memory is memory


def test_problems_leave_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.GRUCell(6, 4), nn.Linear(4, 2))
    before = snapshot(model)
    with pytest.raises(ValueError, match="left as it is, because of 1 problem"):
        nap.normalize_(model, torch.randn(2, 8))
    assert_unchanged(before, snapshot(model))


def test_converting_twice_adds_nothing_and_forgets_nothing():
    model, x = mlp(), torch.randn(3, 8)
    plan = nap.normalize_(model, x)
    out, keys = model(x), list(model.state_dict())
    assert nap.plan(model, x).placements == nap.normalize_(model, x).placements == ()
    assert torch.equal(model(x), out)
    assert list(model.state_dict()) == keys
    assert model._nap_plan.placements == plan.placements
    with pytest.raises(ValueError, match="'0' already carries a norm"):
        nap.normalize_(model, plan)


def test_a_model_that_has_grown_is_completed():
    body, x = mlp(), torch.randn(3, 8)
    nap.normalize_(body, x)
    grown = nn.Sequential(body, nn.ReLU(), nn.Linear(3, 2))
    assert [p.module for p in nap.normalize_(grown, x).placements] == ["0.4"]
    assert nap.verify(grown, x).norms == 3


OTHERS = {
    "other names": nn.ModuleDict({"a": nn.Linear(8, 16)}),
    "other classes": nn.Sequential(nn.Conv1d(8, 16, 1), nn.ReLU(), nn.Linear(16, 16)),
    "other widths": nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12)),
    "no bias to remove": nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 16)),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_a_plan_for_another_model_is_refused(other):
    plan, before = nap.plan(mlp(), torch.randn(2, 8)), snapshot(other)
    with pytest.raises(ValueError, match="made for another model"):
        nap.normalize_(other, plan)
    assert_unchanged(before, snapshot(other))
    with pytest.raises(ValueError, match="holds its options already"):
        nap.normalize_(mlp(), plan, norm="rms")


# what goes in and comes out


@dataclass
class Result:
    logits: Tensor
    extra: None = None


class Calling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, batch: dict[str, Tensor], *, shift: float = 0.0, twice: Tensor | None = None) -> Result:
        x = batch["x"] + shift
        return Result(self.body(x if twice is None else x + twice))


def test_mappings_keywords_and_dataclasses():
    model, batch = Calling(), {"x": torch.randn(2, 8)}
    for kwargs in ({}, {"shift": 1.0}, {"twice": torch.randn(2, 8)}):
        assert [p.module for p in nap.plan(model, (batch,), kwargs).placements] == ["body.0", "body.2"]
    nap.normalize_(model, batch, {"shift": 1.0})
    assert model(batch).logits.shape == (2, 3)
    nap.verify(model, batch)


def test_a_model_that_fails_says_so_with_its_own_words():
    with pytest.raises(
        ValueError, match=r"Sequential fails on the example inputs.*cannot be multiplied"
    ) as failure:
        nap.plan(mlp(), torch.randn(2, 7))
    assert isinstance(failure.value.__cause__, RuntimeError)

    class Silent(nn.Module):
        def forward(self, x: Tensor) -> None:
            return None

    with pytest.raises(ValueError, match="returns no tensor"):
        nap.plan(Silent(), torch.randn(2, 7))
    with pytest.raises(ValueError, match="hold no tensor"):
        nap.plan(mlp(), ())
    with pytest.raises(ValueError, match=r"torch\.nn\.Module, not on a function"):
        nap.plan(mlp, torch.randn(2, 7))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compiled already"):
        nap.plan(cast(nn.Module, torch.compile(mlp(), backend="eager")), torch.randn(2, 8))


class Folded(nn.Module):
    """Returns two tensors, so its norm hangs on the activation, which has no parameter to live beside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x) @ self.layer.weight, x


class Unfolded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.folded, self.act, self.head = Folded(), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.folded(x)[0]))


def test_a_model_without_shapes_cannot_be_planned():
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet"):
        nap.plan(nn.Sequential(nn.LazyLinear(4), nn.ReLU()), torch.randn(2, 8))


def test_a_norm_on_an_activation_lives_where_the_model_lives():
    model = Unfolded().double()
    plan = nap.normalize_(model, torch.randn(2, 8, dtype=torch.float64))
    assert [(p.module, p.action) for p in plan.placements] == [("act", "normalise input")]
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert nap.plan(Unfolded(), torch.randn(2, 8), exclude=["act"]).placements == ()


def test_norms_live_where_their_layers_live():
    model = mlp().double()
    nap.normalize_(model, torch.randn(2, 8, dtype=torch.float64))
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert all(p.is_meta for p in copy.deepcopy(model).to("meta").parameters())
    assert sum(isinstance(m, Norm) for m in model.modules()) == 2


class TwoPaths(nn.Module):
    """Which layer runs depends on the size of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.short, self.long, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        layer = self.long if x.shape[1] > 5 else self.short
        return self.head(torch.relu(layer(x)))


def test_several_examples_cover_several_paths() -> None:
    short, long = torch.randn(2, 3, 4), torch.randn(2, 9, 4)
    one = nap.plan(TwoPaths(), short)
    assert [p.module for p in one.placements] == ["short"]
    assert one.weights["long.weight"].role is nap.Role.UNUSED
    model = TwoPaths()
    plan = nap.normalize_(model, [(short,), (long,)])
    assert [p.module for p in plan.placements] == ["short", "long"]
    assert nap.verify(model, [(short,), (long,)]).scale_invariant == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_get_the_plan_of_their_full_precision_twin(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    full, half = copy.deepcopy(layer), layer.to(dtype)
    x = torch.randn(2, 5, 16)
    assert nap.normalize_(half, x.to(dtype)) == nap.plan(full, x)
    assert {p.dtype for p in half.parameters()} == {dtype}
    assert half(x.to(dtype)).isfinite().all()


def test_names_that_match_nothing_are_errors_with_a_hint() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.raises(ValueError, match="allow names 'typo', which is no problem"):
        nap.plan(net, torch.randn(2, 4), allow=["typo"])
    named = nn.ModuleDict({"encoder": net})
    named.forward = named["encoder"].forward
    with pytest.raises(ValueError, match="did you mean 'encoder'"):
        nap.plan(named, torch.randn(2, 4), exclude=["encodr"])


def test_a_model_without_a_forward_is_told_what_to_do() -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor = nn.Linear(4, 2)

    with pytest.raises(ValueError, match="convert the parts of it that can"):
        nap.plan(Agent(), torch.randn(2, 4))


class Probing(nn.Module):
    """A layer's result enters a hidden ReLU, and a sigmoid that is an output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x)
        return self.head(F.relu(y)), torch.sigmoid(y)


def test_a_note_on_a_module_that_gets_a_norm_is_kept():
    model = Probing()
    plan = nap.normalize_(model, torch.randn(4, 8))
    assert [(row["module"], row["action"]) for row in plan.rows] == [
        ("layer", "LayerNorm on its output, bias removed"),
        ("layer", "noted"),
    ]
    assert plan.left_alone[0].reason == "sigmoid after it is the model's output"
    assert nap.verify(model, torch.randn(4, 8)).left_alone == ()
