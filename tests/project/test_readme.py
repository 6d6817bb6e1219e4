"""What the documents show is true: snippets run, links lead somewhere."""

from __future__ import annotations

import builtins
import doctest
import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nap.lab.cli.options import parse, split_names
from nap.lab.cli.parser import parser
from nap.lab.experiments import MODULES, experiments
from nap.lab.launch.options import SweepOptions, TuneOptions
from nap.lab.options import RunOptions

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
OPTIONAL = re.compile(r"^from (torchrl|sb3_contrib)", re.MULTILINE)  # CI has them; elsewhere left out
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#[^)]*)?\)")
OPTIONS: dict[str, type[RunOptions]] = {"run": RunOptions, "sweep": SweepOptions, "tune": TuneOptions}
FILE = re.compile(r"\b((?:src|tests|examples|docs)/[\w/.-]+\.(?:py|md))\b")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run_snippets(text: str, filename: str) -> None:
    """Run the snippets of a page in one namespace: those with `>>>` as doctests, others as they stand."""
    namespace: dict[str, Any] = {"__name__": filename}
    for match in SNIPPET.finditer(text):
        code, first_line = match[1], text.count("\n", 0, match.start(1))
        if (library := OPTIONAL.search(code)) and find_spec(library[1]) is None:
            continue
        if not code.startswith(">>>"):
            exec(compile("\n" * first_line + code, filename, "exec"), namespace)
            continue
        example = doctest.DocTestParser().get_doctest(code, namespace, filename, filename, first_line)
        report: list[str] = []
        result = doctest.DocTestRunner(verbose=False).run(example, out=report.append, clear_globs=False)
        vars(builtins).pop("_", None)  # where doctest leaves the last value; tyro would trip over some
        assert result.failed == 0, "".join(report)
        namespace.update(example.globs)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if SNIPPET.search(page.read_text("utf-8"))], ids=name
)
def test_snippets_run(page: Path) -> None:
    run_snippets(page.read_text("utf-8"), name(page))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_snippet_hides(page: Path) -> None:
    """Code stands in ```python, which is run; ```text and fences without a word are not Python."""
    text = page.read_text("utf-8")
    fences = FENCE.findall(text)
    assert len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)) == 2 * len(fences)
    assert {language for language, _ in fences} <= {"python", "text", ""}
    assert [code for language, code in fences if language != "python" and ">>>" in code] == []


def shown_commands(text: str) -> list[list[str]]:
    """The words of each `nap …` in a fence; what follows two spaces is a remark, `&` the shell's."""
    fences = [code for language, code in FENCE.findall(text) if not language]
    lines = [line for code in fences for line in re.sub(r"\\\n\s*", "", code).splitlines()]
    commands = [re.split(r"\s{2,}|\s#|\s&$", line)[0] for line in lines if line.startswith("nap ")]
    return [shlex.split(command)[1:] for command in commands]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if shown_commands(page.read_text("utf-8"))], ids=name
)
def test_commands_are_understood(page: Path) -> None:
    for words in shown_commands(page.read_text("utf-8")):
        if words[0] in OPTIONS:
            names, settings = split_names([word for word in words[1:] if word != "--help"], MODULES)
            for experiment, of in experiments(names).items():
                parse(experiment, of.scales, settings, OPTIONS[words[0]])
        else:
            parser(MODULES).parse_args(words)


def test_a_wrong_command_is_seen() -> None:
    (words,) = shown_commands("```\nnap run fig1 --tsaks 3    a remark\n```\n")
    with pytest.raises(ValueError, match="tsaks"):
        parse("fig1", experiments(["fig1"])["fig1"].scales, split_names(words[1:], MODULES)[1])


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
