"""What the documents show is true: snippets run, links lead somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#[^)]*)?\)")
FILE = re.compile(r"\b((?:src|tests|examples|docs)/[\w/.-]+\.(?:py|md))\b")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_snippets(text: str, filename: str) -> None:
    """Run the snippets of a page in one namespace: those with `>>>` as doctests, others as they stand."""
    namespace: dict[str, Any] = {"__name__": filename}
    for match in SNIPPET.finditer(text):
        code, first_line = match[1], text.count("\n", 0, match.start(1))
        if not code.startswith(">>>"):
            exec(compile("\n" * first_line + code, filename, "exec"), namespace)
            continue
        example = doctest.DocTestParser().get_doctest(code, namespace, filename, filename, first_line)
        report: list[str] = []
        result = doctest.DocTestRunner(verbose=False).run(example, out=report.append, clear_globs=False)
        assert result.failed == 0, "".join(report)
        namespace.update(example.globs)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if SNIPPET.search(page.read_text("utf-8"))], ids=name
)
def test_snippets_run(page: Path) -> None:
    run_snippets(page.read_text("utf-8"), name(page))


@pytest.mark.parametrize("code", [">>> 1 + 1\n3\n", "assert 1 + 1 == 3\n", ">>> 1 / 0\n"])
def test_a_wrong_snippet_is_seen(code: str) -> None:
    with pytest.raises(AssertionError):
        run_snippets(f"Some text.\n\n```python\n{code}```\n", "page.md")


def test_snippets_of_a_page_share_names() -> None:
    run_snippets(
        "```python\n>>> x = 2\n```\nand\n```python\ny = x + 1\n```\n```python\n>>> y\n3\n```\n", "page.md"
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    missing = [link for link in LINK.findall(prose) if not (page.parent / link).exists()]
    missing += [file for file in FILE.findall(text) if not (ROOT / file).exists()]
    assert missing == []
