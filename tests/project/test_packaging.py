"""What is published: one version, and a wheel that works outside of the repository, its extras included."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import nap

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def test_the_version_is_said_once() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", nap.__version__)
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert f"\nversion: {nap.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(rf"^## \[({re.escape(nap.__version__)}|Unreleased)\]", changes, re.MULTILINE)


def test_the_tests_of_the_core_need_the_core_alone() -> None:
    done = subprocess.run([sys.executable, ROOT / ".ci/core_tests.py"], capture_output=True, text=True)
    chosen = set(done.stdout.split())
    assert any(name.endswith("test_projector.py") for name in chosen)
    assert not any(name.endswith(("test_lab_cli.py", "test_integrations_lightning.py")) for name in chosen)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the repository; without a download."""
    home = tmp_path_factory.mktemp("build")
    shutil.copytree(ROOT / "src", home / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, home)
    build = [*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w"]
    subprocess.run([*build, str(home), str(home)], check=True)
    (built,) = home.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and its extra `lab`; everything else it finds where these tests do."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "reused.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    interpreter = home / "bin/python"
    install = [*PIP, "--python", str(interpreter), "install", "-q", "--no-index"]
    subprocess.run([*install, "--force-reinstall", "--no-deps", str(wheel)], check=True)
    extra = f"{wheel}[lab]"  # pip fails where one of its requirements is missing
    subprocess.run([*install, extra], check=True)
    return interpreter


def outside(python: Path, words: list[str], folder: Path) -> str:
    """What a command says in an empty folder, without this repository on any path."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python.parent / words[0], *words[1:]],
        cwd=folder,
        env={**clean, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_runs_outside_of_the_repository(wheel: Path, python: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert "nap/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "benchmarks"))]

    where = outside(python, ["python", "-c", "import nap; print(nap.__file__, nap.__version__)"], tmp_path)
    assert where.split() == [
        str(next(python.parents[1].glob("lib/*/site-packages/nap/__init__.py"))),
        nap.__version__,
    ]
    assert "fig1" in outside(python, ["nap", "list"], tmp_path)
    tiny = [
        "nap",
        "run",
        "fig1",
        "--tasks",
        "2",
        "--epochs",
        "1",
        "--images",
        "64",
        "--seeds",
        "2",
        "--arms",
        "NaP",
    ]
    assert "claims" in outside(python, tiny, tmp_path)
    assert list(tmp_path.glob("results/fig1-demo/*/rows.jsonl"))
