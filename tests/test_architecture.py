"""The shape of the house: who may import whom, read from the source without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
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
    "rows": {"aliases", "files"},
    "stored": {"aliases", "files", "rows"},
    "seeds": set(),
    "metrics": set(),
    "datasets": {"files"},
    "models": set(),
    "runner": {"aliases", "files", "rows", "stored"},
    "loops": {"aliases", "datasets", "files", "models", "runner", "seeds"},
    "claims": {"aliases", "rows", "stored", "metrics", "seeds"},
    "report": {"aliases", "files", "rows", "stored", "claims", "metrics", "seeds"},
}
LOOPS = {  # training loop → the others that it may reach: what they share, and nothing else
    "common": set(),
    "population": {"common"},
    "supervised": {"common", "population"},
    "language": {"common", "population"},
    "rainbow": {"common", "population"},
}
# files that need Triton, which comes with torch on Linux; optional
KERNELS = {"nap.norms.fused", "nap.norms.rows", "nap.projection.fused"}
SERVES = {  # module of nap.integrations → the libraries that it may import
    "nap.integrations.lightning": {"lightning", "pytorch_lightning"},
    "nap.integrations.huggingface": {"transformers"},
    "nap.integrations.stable_baselines3": {"stable_baselines3", "gymnasium"},
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
        inside = here.startswith(("nap.lab.experiments", "nap.lab.launch")) or here == "nap.lab.cli"
        if target.startswith("nap.lab.experiments") and not inside:
            found.append(f"{here} imports {target}: experiments are for the command line alone")
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
        ("lab/report/page.py", "import torch"),
        ("lab/claims.py", "from nap.diagnostics import feature_rank"),
        ("lab/datasets/images.py", "from nap.lab.loops.population import learner"),
        ("lab/loops/population/learner.py", "from nap.lab.loops.rainbow import replay"),
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
