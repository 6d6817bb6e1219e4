"""Prints the test files that need no more than the library, torch, numpy, pytest and hypothesis."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
ALLOWED = {"torch", "numpy", "pytest", "hypothesis", "nap", "__future__", *sys.stdlib_module_names}
BEYOND = ("nap.lab", "nap.integrations")


@cache
def needs_more(path: Path) -> bool:
    """Whether a file imports, itself or through helpers of the tests, what the core does not need."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            top = name.partition(".")[0]
            helpers = [*TESTS.rglob(f"{top}.py")]
            if name.startswith(BEYOND) or (top not in ALLOWED and not helpers):
                return True
            if helpers and top not in ALLOWED and needs_more(helpers[0]):
                return True
    return False


def starts_lab_processes(path: Path) -> bool:
    text = path.read_text("utf-8")
    return any(
        word in text for word in ("nap.lab", "src/nap/lab", "sweep_tiny", "PAPER.md", "pyproject.toml")
    )


if __name__ == "__main__":
    files = sorted(TESTS.rglob("test_*.py"))
    chosen = [f for f in files if not needs_more(f) and not starts_lab_processes(f) and "cuda" not in f.stem]
    print(*(file.relative_to(ROOT) for file in chosen))
