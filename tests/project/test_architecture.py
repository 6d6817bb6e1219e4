"""The shape of the house: who may import whom, read from the source without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
FILES = sorted((SRC / "nap").rglob("*.py"))
FLOORS = ("methods", "integrations", "lab")
MAY_IMPORT = {  # floor of the importing module → floors of nap that it may reach
    "core": {"core"},
    "methods": {"core", "methods"},
    "integrations": {"core", "integrations"},
    "lab": {"core", "methods", "integrations", "lab"},
}
ROOMS = {  # room of the lab → rooms that it may reach, besides itself
    "aliases": set(),
    "files": set(),
    "machine": set(),
    "rows": {"aliases", "files"},
    "stored": {"aliases", "files", "rows"},
    "seeds": set(),
    "metrics": set(),
    "datasets": {"files"},
    "models": set(),
    "runner": {"aliases", "files", "rows", "stored"},
    "loops": {"aliases", "datasets", "files", "machine", "models", "runner", "seeds"},
    "claims": {"aliases", "rows", "stored", "metrics", "seeds", "experiments"},
    "report": {"aliases", "files", "rows", "stored", "claims", "metrics", "seeds", "experiments"},
}
REGISTRY = {"nap.lab.experiments", "nap.lab.experiments.experiment"}  # through which experiments are found
WITHOUT_TORCH = {"experiments", "aliases", "metrics", "rows", "seeds"}
PARTS = {  # module of an experiment's package → rooms of the lab that it may reach; runs.py may reach all
    "__init__": WITHOUT_TORCH,
    "claims": {*WITHOUT_TORCH, "claims"},
    "figure": {*WITHOUT_TORCH, "claims", "report"},
}
COMPARE = "nap.lab.compare"  # the function behind `nap compare`, which is no experiment of the paper
SETTINGS = {"settings", "games", "atari"}  # of a loop: values, without torch
VALUES = {"nap.validation", "nap.lab.models.presets"}
LOOPS = {  # training loop → the others that it may reach: what they share, and nothing else
    "common": set(),
    "population": {"common"},
    "supervised": {"common", "population"},
    "language": {"common", "population"},
    "rainbow": {"common", "population"},
}
# files that need Triton, which comes with torch on Linux; optional
KERNELS = {"nap.kernels.statistics_triton", "nap.kernels.norm_relu_triton", "nap.kernels.projection_triton"}
SERVES = {  # module of nap.integrations → the libraries that it may import
    "nap.integrations.lightning": {"lightning", "pytorch_lightning"},
    "nap.integrations.huggingface": {"transformers"},
    "nap.integrations.stable_baselines3": {"stable_baselines3", "gymnasium"},
    "nap.integrations.sb3_contrib": {"sb3_contrib"},
    "nap.integrations.torchrl": {"tensordict"},
}
PLACES = {"ray": "nap.lab.launch.ray_engine", "submitit": "nap.lab.launch.slurm_engine"}
LIBRARY_NEEDS = {"torch", "numpy", "nap", *sys.stdlib_module_names}


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def floor(module: str) -> str:
    if module == "nap.__main__":
        return "lab"  # the entry point, which nobody imports
    second = module.split(".")[1:2]
    return second[0] if second and second[0] in FLOORS else "core"


def room_of(module: str) -> str:
    """The part of the lab that a module belongs to, "" outside of it."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["nap", "lab"] and len(parts) > 2 else ""


def loop_of(module: str) -> str:
    """The training loop that a module belongs to, "" outside of them."""
    parts = module.split(".")
    return parts[3] if parts[:3] == ["nap", "lab", "loops"] and len(parts) > 3 else ""


def part_of(path: Path) -> str:
    """Which part of an experiment's package a file is, "" outside of those packages."""
    inside = path.relative_to(SRC).parts[3:] if "nap/lab/experiments/" in path.as_posix() else ()
    return path.stem if len(inside) > 1 else ""


def is_package(module: str) -> bool:
    """Whether a module belongs to one experiment, or to what several of them share."""
    parts = module.split(".")
    return parts[:3] == ["nap", "lab", "experiments"] and SRC.joinpath(*parts[:4]).is_dir() and len(parts) > 3


def beyond_its_part(part: str, target: str) -> bool:
    """Whether a part of an experiment that needs no torch reaches for more than stored rows and settings."""
    package, *rest = target.split(".")
    if target in VALUES or package not in ("torch", "nap"):
        return False
    if rest[:2] == ["lab", "loops"]:
        return not (len(rest) == 3 or rest[3] in SETTINGS)
    return target != "nap.lab" and room_of(target) not in PARTS[part]


def imports(path: Path, source: str | None = None) -> Iterator[str]:
    """Every module that a file imports, in absolute form, lazy imports in functions included.

    `from nap import lab` counts as `nap.lab`: the names are looked up among the package's files.
    """
    package = module_name(path) if path.name == "__init__.py" else module_name(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8") if source is None else source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*anchor, *filter(None, [node.module])])
            yield base
            for alias in node.names:
                inside = SRC.joinpath(*base.split("."), alias.name)
                if inside.with_suffix(".py").exists() or inside.is_dir():
                    yield f"{base}.{alias.name}"


def broken_arrows(path: Path, source: str | None = None) -> list[str]:
    here = module_name(path)
    reads_rows_only = here.startswith(("nap.lab.report", "nap.lab.claims"))
    found = []
    for target in imports(path, source):
        package = target.split(".")[0]
        kernel = package == "triton" and here in KERNELS
        if floor(here) in ("core", "methods") and package not in LIBRARY_NEEDS and not kernel:
            found.append(f"{here} imports {target}: the library needs torch and numpy only")
        if floor(here) == "integrations" and package not in LIBRARY_NEEDS | SERVES.get(here, set()):
            found.append(f"{here} imports {target}: it serves {sorted(SERVES.get(here, set()))} only")
        if reads_rows_only and (package == "torch" or (package == "nap" and floor(target) != "lab")):
            found.append(f"{here} imports {target}: figures redraw from rows, without torch")
        if (part := part_of(path)) in PARTS and beyond_its_part(part, target):
            found.append(f"{here} imports {target}: only runs.py of an experiment may need torch")
        if package in PLACES and here != PLACES[package]:
            found.append(f"{here} imports {target}: that is slow, and for {PLACES[package]} alone")
        if package != "nap":
            continue
        if floor(target) not in MAY_IMPORT[floor(here)]:
            found.append(f"{here} ({floor(here)}) imports {target} ({floor(target)})")
        room, other = room_of(here), room_of(target)
        if other and room in ROOMS and other != room and other not in ROOMS[room]:
            found.append(f"{here} imports {target}: from {room} one reaches {sorted(ROOMS[room])} only")
        loop, its = loop_of(here), loop_of(target)
        if its and loop in LOOPS and its not in {loop, *LOOPS[loop]}:
            found.append(f"{here} imports {target}: from {loop} one reaches {sorted(LOOPS[loop])} only")
        inside = here.startswith("nap.lab.experiments")
        inside |= here == COMPARE
        runs_them = inside or here.startswith(("nap.lab.launch", "nap.lab.cli"))
        if is_package(target) and not inside:
            found.append(f"{here} imports {target}: experiments are found through nap.lab.experiments.load")
        elif target.startswith("nap.lab.experiments.") and target not in REGISTRY and not runs_them:
            found.append(f"{here} imports {target}: that runs experiments, for the command line alone")
    return found


def ids(path: Path) -> str:
    return module_name(path)


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_imports_follow_the_arrows(path: Path) -> None:
    assert broken_arrows(path) == []


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("weights.py", "from nap.lab import cli"),
        ("weights.py", "from .lab import cli"),
        ("weights.py", "def late():\n    import nap.methods.redo"),
        ("methods/redo.py", "from ..integrations import lightning"),
        ("integrations/lightning.py", "from nap.methods.redo import redo_"),
        ("integrations/lightning.py", "from nap.lab.rows import read_rows"),
        ("integrations/monitor.py", "import lightning"),
        ("lab/runner/folder.py", "from nap.lab.experiments import fig1"),
        ("lab/cli/main.py", "from nap.lab.experiments import fig1"),
        ("lab/claims/verdicts.py", "from nap.lab.experiments.fig1.claims import CLAIMS"),
        ("lab/report/page.py", "from nap.lab.experiments import running"),
        ("lab/experiments/fig1/__init__.py", "import torch"),
        ("lab/experiments/fig1/__init__.py", "from nap.lab.claims import claim"),
        ("lab/experiments/fig1/claims.py", "from nap.lab.report import panels"),
        ("lab/experiments/fig1/claims.py", "from nap.lab.loops.population import trainer"),
        ("lab/experiments/fig1/figure.py", "from nap.weights import Role"),
        ("lab/experiments/common/rainbow/__init__.py", "from nap.lab.models import cnn"),
        ("lab/report/page.py", "import torch"),
        ("lab/claims.py", "from nap.diagnostics import feature_rank"),
        ("lab/datasets/images.py", "from nap.lab.loops.population import trainer"),
        ("lab/loops/population/trainer.py", "from nap.lab.loops.rainbow import replay"),
        ("lab/runner/carry.py", "from nap.lab.launch import jobs"),
        ("lab/launch/drive.py", "import ray"),
        ("weights.py", "import scipy.stats"),
        ("methods/redo.py", "from sklearn import datasets"),
    ],
)
def test_a_wrong_arrow_is_seen(where: str, line: str) -> None:
    assert len(broken_arrows(SRC / "nap" / where, line)) >= 1


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_one_idea_a_file(path: Path) -> None:
    source = path.read_text("utf-8")
    assert ast.get_docstring(ast.parse(source)), "a module starts by saying what it is"
    assert len(source.splitlines()) <= 400, "split by idea"


def test_public_names_are_few_and_there() -> None:
    import nap

    assert len(nap.__all__) <= 22
    assert [name for name in nap.__all__ if not hasattr(nap, name)] == []
