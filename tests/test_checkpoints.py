"""`nap.save` and `nap.load`: one file, a plain model rebuilt, training that goes on as if never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nap
from nap.conversion.placement import Plan

X = torch.linspace(-2, 2, 32).sin().reshape(4, 8)


class Attending(nn.Module):
    """Everything that step 1 does by other means than a norm on a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.hidden, self.out = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        x = x.unsqueeze(1)
        return self.out(torch.relu(self.hidden(x + self.attention(x, x, x, need_weights=False)[0])))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def small_head() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
    nn.init.zeros_(model.get_parameter("2.weight"))
    return model


CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "mlp": (mlp, {}, {}),
    "joint, excluded": (mlp, {"norm": "rms"}, {"affine": "joint", "exclude": ["2"], "every": 2}),
    "attention": (Attending, {}, {"output": "free"}),
    "gain": (small_head, {"gains": "small"}, {"affine": "decay", "decay": 0.1}),
    "rows": (mlp, {}, {"per": "row", "branches": "project"}),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
    for seed in range(updates):
        optimizer.zero_grad()
        (model(X + seed) - 1).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("case", CASES)
def test_a_loaded_run_goes_on_bit_by_bit(case: str, tmp_path: Path) -> None:
    make, normalize, project = CASES[case]
    torch.manual_seed(0)
    model = make()
    nap.normalize_(model, X, **normalize)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    projector = nap.Projector(model, **project).attach(optimizer)
    train(model, optimizer, 3)
    nap.save(tmp_path / "run.pt", model, projector, optimizer, step=3)

    torch.manual_seed(1)
    fresh = make()
    checkpoint = nap.load(tmp_path / "run.pt", fresh)
    again = torch.optim.Adam(fresh.parameters(), lr=0.5)  # its own rate comes back with its state
    resumed = checkpoint.resume(again)
    assert checkpoint.extra == {"step": 3}
    assert resumed is not None
    assert resumed.plan.names("project") == projector.plan.names("project")
    train(model, optimizer, 3)
    train(fresh, again, 3)
    for name, value in model.state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name]), name
    assert resumed.updates == projector.updates


def test_the_file_is_plain_and_a_broken_save_leaves_the_old_one(tmp_path: Path) -> None:
    model = mlp()
    plan = nap.normalize_(model, X)
    path = tmp_path / "run.pt"
    nap.save(path, model)
    content = torch.load(path, weights_only=True)
    assert Plan.from_json(content["plans"][""]) == plan
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"rule holds a function that weights_only=True will not load"):
        nap.save(path, model, rule=lambda: None)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.pt"]
    fresh = mlp()
    assert nap.load(path, fresh).projector is None
    assert torch.equal(fresh(X), model(X))


def test_parts_wrappers_and_converted_models_are_loaded_too(tmp_path: Path) -> None:
    def parts() -> nn.ModuleDict:
        return nn.ModuleDict({"actor": mlp(), "critic": mlp()})

    both = parts()
    for part in both.values():
        nap.normalize_(part, X)
    path = tmp_path / "run.pt"
    compiled: Any = torch.compile(both["actor"], backend="eager")
    nap.save(path, both)
    fresh = parts()
    nap.normalize_(fresh["actor"], X)  # its norms are there already
    nap.load(path, fresh)
    assert torch.equal(fresh["critic"](X), both["critic"](X))
    nap.save(path, compiled)
    other = mlp()
    nap.load(path, other)
    assert torch.equal(other(X), both["actor"](X))


def test_a_checkpoint_prints_in_one_line(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    nap.normalize_(model, torch.randn(2, 4))
    optimizer = torch.optim.Adam(model.parameters())
    projector = nap.Projector(model, output="free").attach(optimizer)
    nap.save(tmp_path / "run.pt", model, projector, optimizer, step=3)
    loaded = nap.load(tmp_path / "run.pt", nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    assert repr(loaded) == (
        "Checkpoint of Sequential: Projector of Sequential: 1 projected, 4 left free; not attached; "
        "1 optimizer state(s); extra: step"
    )


def test_several_optimizers_in_their_order(tmp_path: Path) -> None:
    model = mlp()
    nap.normalize_(model, X)
    halves = list(model.parameters())[:3], list(model.parameters())[3:]
    optimizers = [torch.optim.Adam(half) for half in halves]
    projector = nap.Projector(model).attach(*optimizers)
    nap.save(tmp_path / "run.pt", model, projector, optimizers)
    fresh = mlp()
    checkpoint = nap.load(tmp_path / "run.pt", fresh)
    first, second = list(fresh.parameters())[:3], list(fresh.parameters())[3:]
    with pytest.raises(ValueError, match=r"holds 2 optimizer\(s\), and resume was handed 1"):
        checkpoint.resume(torch.optim.Adam(first))
    with pytest.raises(ValueError, match="this Adam holds other parameters"):
        checkpoint.resume(torch.optim.Adam(second), torch.optim.Adam(first))
    assert checkpoint.resume(torch.optim.Adam(first), torch.optim.Adam(second)) is not None


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    model = mlp()
    nap.normalize_(model, X)
    nap.save(tmp_path / "run.pt", model)
    wider = nn.Sequential(*list(mlp()), nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"another model than this Seq.*\n.*5.bias: in the model only"):
        nap.load(tmp_path / "run.pt", wider)
    with pytest.raises(ValueError, match="the plan was made for another model"):
        nap.load(tmp_path / "run.pt", nn.Sequential(nn.Linear(8, 3)))


def test_files_of_others_are_answered(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    torch.save(mlp().state_dict(), path)
    with pytest.raises(ValueError, match=r"not written by nap.save, and has no layers of nap"):
        nap.load(path, mlp())
    model = mlp()
    nap.normalize_(model, X)
    torch.save(model.state_dict(), path)
    with pytest.raises(ValueError, match=r"has layers of nap.*after nap.normalize_"):
        nap.load(path, mlp())
    torch.save(model, path)
    with pytest.raises(ValueError, match="holds Python objects"):
        nap.load(path, mlp())
    torch.save({"nap": 99}, path)
    with pytest.raises(ValueError, match=r"format 99.*update nap"):
        nap.load(path, mlp())


@pytest.mark.parametrize("part", ["class", "plans", "model", "projector", "optimizers", "extra"])
@pytest.mark.parametrize("value", ["absent", 3])
def test_a_file_with_a_part_missing_or_changed_is_damaged(part: str, value: Any, tmp_path: Path) -> None:
    model, path = mlp(), tmp_path / "run.pt"
    nap.normalize_(model, X)
    nap.save(path, model, nap.Projector(model))
    content = {key: held for key, held in torch.load(path, weights_only=True).items() if key != part}
    torch.save(content | ({} if value == "absent" else {part: value}), path)
    with pytest.raises(ValueError, match=f"is damaged: {part} is missing or changed"):
        nap.load(path, mlp())


def test_files_that_are_empty_cut_off_or_of_other_sizes_are_refused(tmp_path: Path) -> None:
    model, path = mlp(), tmp_path / "run.pt"
    nap.normalize_(model, X)
    nap.save(path, model, nap.Projector(model))
    whole = path.read_bytes()
    for broken in (b"", whole[: len(whole) // 2]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="is damaged: empty, cut off or overwritten"):
            nap.load(path, mlp())
    path.write_bytes(whole)
    content = torch.load(path, weights_only=True)
    content["plans"][""] = content["plans"][""].replace('"out_axis": 0', '"out_axis": 3')
    del content["sha256"]
    torch.save(content, path)
    with pytest.raises(ValueError, match="does not fit this Sequential"):
        nap.load(path, mlp())
    other = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"does not fit.*size mismatch"):
        nap.load(path, other)


def edit_a_gain(content: dict[str, Any]) -> None:
    content["plans"][""] = content["plans"][""].replace('"gain": 1.0', '"gain": 1.5', 1)


def edit_a_weight(content: dict[str, Any]) -> None:
    content["model"]["0.weight"][0, 0] += 1e-3


def edit_a_radius(content: dict[str, Any]) -> None:
    content["projector"]["state"]["radii"]["0.weight"] *= 2


def edit_a_moment(content: dict[str, Any]) -> None:
    content["optimizers"][0]["state"]["state"][0]["exp_avg"].zero_()


def edit_a_step(content: dict[str, Any]) -> None:
    content["extra"]["step"] = 4


EDITS: Any = [edit_a_gain, edit_a_weight, edit_a_radius, edit_a_moment, edit_a_step]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_refused_unless_its_checksum_is_deleted(edit: Any, tmp_path: Path) -> None:
    model, path = mlp(), tmp_path / "run.pt"
    nap.normalize_(model, X)
    optimizer = torch.optim.Adam(model.parameters())
    projector = nap.Projector(model).attach(optimizer)
    train(model, optimizer, 1)
    nap.save(path, model, projector, optimizer, step=3)
    content = torch.load(path, weights_only=True)
    torch.save(content, path)
    nap.load(path, mlp())  # written again, but with the same content
    edit(content)
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"run.pt is damaged or was edited: its checksum.*'sha256'"):
        nap.load(path, mlp())
    del content["sha256"]  # as in files from before there were checksums
    torch.save(content, path)
    nap.load(path, mlp())


def test_every_kind_of_value_has_a_checksum(tmp_path: Path) -> None:
    model, path = mlp(), tmp_path / "run.pt"
    nap.normalize_(model, X)
    kinds = (torch.bfloat16, torch.complex64, torch.bool, torch.int64, torch.float8_e4m3fn)
    extra: dict[str, Any] = {str(kind): torch.ones(2, 3).to(kind) for kind in kinds}
    extra |= {"scalar": torch.tensor(2.0), "empty": torch.zeros(0, 3), "sparse": torch.eye(3).to_sparse()}
    extra |= {"turned": torch.arange(6).reshape(2, 3).T, "nested": {1: [None, True, 1.5, b"x", (2, "y")]}}
    nap.save(path, model, **extra)
    loaded = nap.load(path, mlp()).extra
    assert torch.equal(loaded["turned"], extra["turned"])
    assert loaded["nested"] == extra["nested"]


def test_a_plan_that_subtracts_what_is_no_bias_is_refused() -> None:
    text = nap.plan(mlp(), X).to_json()
    for name, reason in (("zzz", "no parameter 'zzz'"), ("weight", "has 2 axes")):
        plan = Plan.from_json(text.replace('"subtract": null', f'"subtract": "{name}"', 1))
        with pytest.raises(ValueError, match=reason):
            nap.normalize_(mlp(), plan)


def test_a_gain_that_is_a_huge_integer_is_a_number() -> None:
    plan = Plan.from_json(nap.plan(mlp(), X).to_json().replace('"gain": 1.0', f'"gain": {10**30}'))
    model = mlp()
    nap.normalize_(model, plan)
    assert isinstance(plan.placements[0].gain, float)
    model(X)


def test_a_plain_state_dict_meets_words_about_nap() -> None:
    model, plain = mlp(), mlp().state_dict()
    nap.normalize_(model, X)
    with pytest.raises(
        RuntimeError, match=r"0.nap_norm.weight \(the state dict has no layers of nap.*nap.load"
    ) as error:
        model.load_state_dict(plain)
    assert str(error.value).count("0.nap_norm.weight (the state dict has no layers of nap") == 1
    missing, _ = model.load_state_dict(plain, strict=False)  # who asks for it may do so
    assert "0.nap_norm.weight" in missing
