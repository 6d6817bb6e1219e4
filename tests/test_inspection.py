"""`nap inspect` says what NaP would do, changes nothing, and answers bad usage with a way out."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import nn

import nap
from nap import inspection
from nap.conversion.placement import Plan
from nap.lab.cli.main import BAD_USAGE, OK, PROBLEMS, main

SOURCE = """
import torch
from torch import nn
from helper import WIDTH  # a neighbour of this file

print("a greeting from the user's file")
NUMBER = 3

def make_mlp():
    return nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))

def make_lm():
    return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 50))

def make_with_inputs():
    return make_mlp(), torch.randn(4, 8)

def make_with_kwargs():
    return make_mlp(), (), {"input": torch.randn(4, 8)}

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.head = nn.GRUCell(8, 8), nn.Linear(8, 3)
    def forward(self, x):
        return self.head(x * self.score(x))

def make_infinite_head():
    model = make_mlp()
    nn.init.constant_(model[2].weight, float("inf"))
    return model

def make_nothing():
    return "a model, honestly"

def make_late():
    from later import WIDTH  # only when the model is built
    return nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))

def make_wide(width, *, depth=1):
    return make_mlp()

def make_trouble():
    return {}["weights"]

def make_exit():
    raise SystemExit(0)

MODEL = nn.Linear(8, 3)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "helper.py").write_text("WIDTH = 16\n")
    (tmp_path / "models.py").write_text(SOURCE)
    (tmp_path / "later.py").write_text("WIDTH = 16\n")
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    return str(tmp_path / "models.py")


def test_describes_both_steps_and_touches_nothing() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).double()
    before = copy.deepcopy(model.state_dict())
    found = inspection.describe(model, torch.randn(4, 8, dtype=torch.float64))
    assert [placement.module for placement in found.plan.placements] == ["0"]
    assert found.problems == ()
    assert found.projection is not None
    radii = {row.name: row.radius for row in found.projection.rows if row.radius is not None}
    norms = {name: p.norm().item() for name, p in model.named_parameters() if p.ndim == 2}
    assert radii == pytest.approx(norms, rel=1e-12)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


def test_options_reach_both_steps() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    found = inspection.describe(model, torch.randn(4, 8), projector={"output": "free"}, norm="rms")
    assert not found.plan.placements[0].centre
    assert found.projection is not None
    assert found.projection.names("project") == ["0.weight"]


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("make_mlp", ["--input", "4x8"]),
        ("make_late", ["--input", "4x8"]),
        ("make_lm", ["--input", "2x16:int64"]),
        ("make_with_inputs", []),
        ("make_with_kwargs", []),
        ("Gate", ["--input", "4x8", "--exclude", "score", "--output", "free"]),
    ],
)
def test_fine_models_exit_with_0(
    file: str, factory: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"{file}:{factory}", *words]) == OK
    printed = capsys.readouterr().out
    assert printed.startswith("Step 1: normalise")
    assert "Step 2: project" in printed
    assert "No problems found.\n\nAdvice\n  - " in printed


@pytest.mark.parametrize(("factory", "named"), [("Gate", "score"), ("make_infinite_head", "2.weight")])
def test_problems_exit_with_1(
    file: str, factory: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"{file}:{factory}", "--input", "4x8"]) == PROBLEMS
    verdict = capsys.readouterr().out.partition("1 problem found:\n")[2]
    assert named in verdict


def test_json_is_for_programs(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{file}:make_mlp", "--input", "4x8", "--json"]) == OK
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert found["problems"] == []
    assert [row["name"] for row in found["projection"] if row["action"] == "project"] == [
        "0.weight",
        "2.weight",
    ]
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    nap.normalize_(model, Plan.from_json(json.dumps(found["plan"])))  # what was inspected can be applied
    assert model[0].bias is None
    assert "a greeting" in printed.err


@pytest.mark.parametrize(
    ("target", "words", "message"),
    [
        ("models.py", [], "FILE.py:FACTORY"),
        ("model.py:make_mlp", [], "did you mean models.py?"),
        ("models.py:make_mpl", [], "did you mean make_mlp?"),
        ("models.py:NUMBER", [], "a value, not a function"),
        ("models.py:make_nothing", [], "returned str"),
        ("models.py:make_mlp", [], "add --input"),
        ("models.py:make_with_inputs", ["--input", "4x8"], "returns its own inputs"),
        ("models.py:make_mlp", ["--input", "4x7"], "does not run on the example input: RuntimeError"),
        ("models.py:make_mlp", ["--input", "4xx8"], "sizes joined by x"),
        ("models.py:make_mlp", ["--input", "4x8:float23"], "unknown dtype 'float23'"),
        ("models.py:make_mlp", ["--input", "4x8", "--exclude", "nobody"], "nobody"),
        ("broken.py:make", [], "ModuleNotFoundError"),
        ("models.py:make_trouble", [], "models.py raised KeyError: 'weights'"),
        ("models.py:make_exit", [], "the factory make_exit of"),
        ("models.py:make_wide", [], "needs width; name a function without arguments"),
        ("models.py:MODEL", [], "is a model, not a factory"),
    ],
)
def test_bad_usage_exits_with_2_and_a_way_out(
    file: str, target: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(Path(file).parent / target), *words]) == BAD_USAGE
    printed = capsys.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("words", [["--help"], ["inspect", "--help"]])
def test_help_shows_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 0
    assert "nap inspect models.py:make_model --input 2x3x32x32" in capsys.readouterr().out


@pytest.mark.parametrize(("affine", "action"), [("free", "free"), ("joint", "joint"), ("decay", "decay")])
def test_the_projectors_affine_choice(
    file: str, affine: str, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--input", "4x8", "--projector-affine", affine, "--json"]
    assert main(["inspect", f"{file}:make_mlp", *words]) == OK
    rows = json.loads(capsys.readouterr().out)["projection"]
    assert {row["action"] for row in rows if row["role"] == "affine"} == {action}


def test_a_bad_eps_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["inspect", "models.py:make", "--eps", "foo"])
    assert exit_.value.code == BAD_USAGE
    assert "'foo' is neither 'relative' nor a number" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["nap", "nap.lab.cli"])
def test_runs_as_a_module_and_helps_without_torch(module: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", module]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: nap")
    assert "argparse" in done.stderr  # imports are listed there
    assert "torch" not in done.stderr
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"nap {version('normalize-and-project')}\n"


@pytest.mark.parametrize(("text", "shape", "dtype"), [("5", [5], "float32"), ("2x3:bool", [2, 3], "bool")])
def test_example_inputs(text: str, shape: list[int], dtype: str) -> None:
    made = inspection.example_input(text)
    assert list(made.shape) == shape
    assert made.dtype == getattr(torch, dtype)
    assert torch.equal(made, inspection.example_input(text))
    assert not torch.equal(inspection.example_input("64"), inspection.example_input("64", seed=1))


def test_wrong_kinds_of_args_are_named() -> None:
    with pytest.raises(ValueError, match="args as int and kwargs as dict"):
        inspection.model_and_inputs((nn.Linear(2, 2), 3))


def advice_for(model: nn.Module, x: torch.Tensor, **projector: str) -> str:
    return "\n".join(inspection.describe(model, x, projector=projector).advice)


def test_advice_follows_the_model() -> None:
    relu = nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3))
    said = advice_for(relu, torch.randn(4, 8))
    assert "output: 2.weight projected" in said
    assert "affine='joint') keeps" in said
    assert "weight decay: none on projected weights" in said
    assert "learning rate: start at the best rate" in said
    assert "exclude" not in said
    gelu = nn.Sequential(nn.Linear(8, 9), nn.GELU(), nn.Linear(9, 3))
    said = advice_for(gelu, torch.randn(4, 8), output="free")
    assert "output: 2.weight left free" in said
    assert "affine='joint' is not exact here" in said
    nn.init.normal_(relu.get_parameter("2.weight"), std=1e-4)
    assert "output: 2.weight may grow" in advice_for(relu, torch.randn(4, 8))


class Spare(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.shape[0] > 100 else self[0](x)


def test_advice_names_what_the_example_never_used() -> None:
    model = Spare(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 3))
    assert "exclude: 2.weight: not used on this example" in advice_for(model, torch.randn(4, 8))


@pytest.mark.parametrize("width", [16, 64, 256])
def test_the_cost_of_small_pinned_layers_is_told_at_any_width(width: int) -> None:
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))
    nn.init.normal_(model.get_parameter("2.weight"), std=0.05 / width**0.5)
    assert "2.weight: pinned at 0.0" in advice_for(model, torch.randn(4, 8), output="project")
    text = str(inspection.describe(model, torch.randn(4, 8), projector={"output": "project"}))
    assert "2.weight: pinned at 0.0" in text.partition("Advice")[2]
    assert "pinned" not in advice_for(model, torch.randn(4, 8))  # the default lets it grow
