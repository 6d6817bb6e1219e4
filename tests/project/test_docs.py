"""The site of the documentation builds without a warning, hangs together, and asks no other host."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import sys
from collections import defaultdict
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

import nap
from forked import server
from nap import diagnostics, methods
from nap.lab.experiments import MODULES
from nap.lab.report import draw

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


@cache
def hook(name: str) -> ModuleType:
    """A module of docs/hooks, which is no package; once, since it keeps what it has judged."""
    spec = importlib.util.spec_from_file_location(f"hook_{name}", DOCS / "hooks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {key: value for key, value in attributes if value is not None}
        self.anchors |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADS and LOADS[tag] in found:
            self.loads.append(found[LOADS[tag]])


class Site:
    """The built pages by their address within the site."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.pages = {
            file.relative_to(folder).as_posix(): Page(file.read_text("utf-8"))
            for file in folder.rglob("*.html")
        }

    def target(self, page: str, link: str) -> tuple[str, str]:
        """Where a link leads: the address within the site, and the anchor."""
        parts = urlsplit(link)
        where = os.path.normpath(os.path.join(os.path.dirname(page), unquote(parts.path)))
        return (where if parts.path else page), unquote(parts.fragment)

    def inner_links(self, page: str) -> list[tuple[str, str]]:
        links = [link for link in self.pages[page].links if not urlsplit(link).scheme]
        return [self.target(page, link) for link in links]

    def dead_links(self) -> dict[str, list[tuple[str, str]]]:
        dead = defaultdict(list)
        for page in self.pages.keys() - {"404.html"}:  # its links are from the root of a server
            for where, anchor in self.inner_links(page):
                known = where in self.pages and (not anchor or anchor in self.pages[where].anchors)
                if not known and (anchor or not (self.folder / where).exists()):
                    dead[page].append((where, anchor))
        return dead

    def reachable(self) -> set[str]:
        seen, waiting = {"index.html"}, ["index.html"]
        while waiting:
            for where, _ in self.inner_links(waiting.pop()):
                if where in self.pages and where not in seen:
                    seen.add(where)
                    waiting.append(where)
        return seen

    def outside_requests(self) -> dict[str, list[str]]:
        """What a browser would ask of other hosts when a page is opened."""
        found = {
            name: [url for url in page.loads if urlsplit(url).netloc] for name, page in self.pages.items()
        }
        for sheet in self.folder.rglob("*.css"):
            named = re.findall(
                r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)", sheet.read_text("utf-8")
            )
            found[sheet.name] = named
        for name in self.pages:  # the theme fetches a library where there is a diagram in text
            found[name] += re.findall(r'<[a-z]+ class="mermaid"', (self.folder / name).read_text("utf-8"))
        return {name: urls for name, urls in found.items() if urls}

    def lists_read_as_text(self) -> dict[str, list[str]]:
        """Items that Markdown took for words of a paragraph, since no empty line is in front of them."""
        found = {}
        for name in self.pages:
            paragraphs = re.findall(r"<p>(.*?)</p>", (self.folder / name).read_text("utf-8"), re.DOTALL)
            found[name] = re.findall(r"^- .*", "\n".join(paragraphs), re.MULTILINE)
        return {name: items for name, items in found.items() if items}


def public_names() -> list[str]:
    """Every name that the API pages must have, as their anchors spell it."""
    names = [f"nap.{name}" for name in nap.__all__]
    for module in (diagnostics, methods):
        names += [f"{module.__name__}.{name}" for name in module.__all__ if name != "ACTIVATIONS"]
    for file in (ROOT / "src/nap/integrations").glob("[!_]*.py"):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                names.append(f"nap.integrations.{file.stem}.{node.name}")
    return names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of other libraries
def test_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page, with empty figures: other tests draw them, and `make docs` draws all."""
    monkeypatch.setattr(draw, "svg", lambda *_: "<svg></svg>")
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.chdir(ROOT)
    config = load_config("mkdocs.yml", strict=True, site_dir=str(tmp_path))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)  # aborts on a warning
    config.plugins.on_shutdown()
    site = Site(tmp_path)
    assert site.outside_requests() == {}
    assert site.dead_links() == {}
    assert site.pages.keys() - site.reachable() == {"404.html"}

    in_the_api = {a for name, page in site.pages.items() if name.startswith("api/") for a in page.anchors}
    assert [name for name in public_names() if name not in in_the_api] == []

    index = json.loads((tmp_path / "search/search_index.json").read_text("utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {f"reproduce/{name}.html" for name in MODULES} | {"faq.html", "api/projection.html"} <= found
    assert (tmp_path / "search/search_index.js").read_text("utf-8").startswith("var __index")  # from disk

    shown = {name: (tmp_path / "reproduce" / f"{name}.html").read_text("utf-8") for name in MODULES}
    assert [name for name, html in shown.items() if "<!-- lab:" in html] == []
    assert site.lists_read_as_text() == {}


def test_faults_of_a_site_are_seen(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<a href="a.html#there">a</a><a href="gone.html">b</a>', "utf-8")
    (tmp_path / "a.html").write_text('<h1 id="here"></h1><img src="//host/x.png">', "utf-8")
    (tmp_path / "lost.html").write_text("<p>no one links here:\n- item</p><pre>- no item</pre>", "utf-8")
    (tmp_path / "x.css").write_text("a { background: url('https://host/y.png') }", "utf-8")
    site = Site(tmp_path)
    assert site.dead_links() == {"index.html": [("a.html", "there"), ("gone.html", "")]}
    assert site.reachable() == {"index.html", "a.html"}
    assert site.outside_requests().keys() == {"a.html", "x.css"}
    assert site.lists_read_as_text() == {"lost.html": ["- item"]}


def test_every_experiment_has_its_page() -> None:
    assert {page.stem for page in (DOCS / "reproduce").glob("*.md")} == {*MODULES, "index"}
    for name in MODULES:
        page = (DOCS / "reproduce" / f"{name}.md").read_text("utf-8")
        assert f"<!-- lab: commands {name} -->" in page
        assert f"<!-- lab: verdicts {name} -->" in page


def test_every_log_is_in_its_index() -> None:
    index = (DOCS / "log/index.md").read_text("utf-8")
    assert [page.name for page in (DOCS / "log").glob("20*.md") if f"({page.name})" not in index] == []


def test_a_page_says_first_what_came_out() -> None:
    for page in [*(DOCS / "reproduce").glob("*.md"), *(DOCS / "log").glob("20*.md"), DOCS / "results.md"]:
        title, second = page.read_text("utf-8").split("\n\n")[:2]
        assert title.startswith("# "), page.name
        bold = second.startswith("**") or page.stem == "2026-11-18-fair-comparisons"  # rules came first there
        assert bold, f"{page.name}: the first paragraph is the conclusion"


@pytest.mark.parametrize("name", MODULES)
def test_verdicts_on_different_rows_have_different_headings(name: str) -> None:
    headings = re.findall("^### (.*)$", hook("reproduction").verdicts(name), re.MULTILINE)
    assert len({*headings}) == len(headings)


def test_verdicts_come_from_the_rows() -> None:
    reproduction = hook("reproduction")
    text = reproduction.verdicts("walk")
    (place,) = re.findall(r'data-place="([\w-]+)"', text)
    html = reproduction.on_page_content(f'<p>before</p><div data-place="{place}"></div>', None, None, None)
    (hold,) = re.findall(r"claims: (\d+) hold", text)
    assert html.count('class="badge holds"') == int(hold) > 0
    assert "<svg" in html


def test_links_fit_the_repository_and_the_site() -> None:
    outside = hook("outside")

    def on_the_site(text: str, page: str) -> str:
        return outside.rewritten(text, DOCS / page, page)

    assert on_the_site("[a](../PAPER.md#errata)", "faq.md") == "[a](paper.md#errata)"
    assert on_the_site("[a](../../PAPER.md)", "reproduce/fig1.md") == "[a](../paper.md)"
    assert on_the_site("[a](../examples/dqn.py)", "recipes.md") == "[a](source/examples/dqn.py.md)"
    assert on_the_site("[a](../../docs/figures/x.png)", "reproduce/fig1.md") == "[a](../figures/x.png)"
    for same in ("[a](faq.md)", "[a](https://host/PAPER.md)", "`[a](../PAPER.md)`", "[a](#here)"):
        assert on_the_site(same, "index.md") == same


def test_examples_in_docstrings_become_code() -> None:
    fenced = hook("docstrings").fenced
    assert fenced("Adds.\n\n>>> 1 + 1\n2\n\nMore.") == "Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."
    assert fenced("a > b >>> c") == "a > b >>> c"


def test_comments_of_fields_become_docstrings() -> None:
    remark = hook("docstrings").remark
    assert remark(["    name: str  # of its folder"]) == "of its folder"
    assert remark(["x: Any = f()  # type: ignore[misc]"]) == remark(["x = 1"]) == ""


DECLINE = "log/2026-11-15-decline-at-demo-scale.md"
COLLAPSE = "89 % of units linearized, rank 2; with NaP none, rank 293"


@pytest.mark.parametrize(
    ("quoted", "page", "measured", "where"),
    [
        (
            "At 10⁻³ the two change places, LayerNorm .60, NaP .48",
            "schedules.md",
            "*rises*, .44 → .60, NaP stays, .50 → .48",
            "reproduce/fig1.md",
        ),
        (
            "at 3·10⁻⁴ NaP .56, LayerNorm .41",
            "schedules.md",
            "| NaP | .68 | .42 | .56 |",
            "reproduce/fig1.md",
        ),
        (
            "**LayerNorm alone .782, NaP .756**",
            "../README.md",
            "| LayerNorm, no method | 5e-5 | .782 |",
            "log/2026-11-19-figure-4-mlp.md",
        ),
        (
            ".782 against .756 on random labels",
            "results.md",
            "| NaP, no method | 5e-5 | .756 |",
            "log/2026-11-19-figure-4-mlp.md",
        ),
        (
            "NaP ends 7.7 points above a fresh network [6.9, 8.6], 18.9 above LayerNorm alone",
            "../README.md",
            "NaP ends 7.7 points above a fresh network [6.9, 8.6] and 18.9 above LayerNorm alone",
            "reproduce/fig1.md",
        ),
        (
            "14 points below it [8, 20]",
            "results.md",
            "14 points above NaP at a constant rate [8, 20]",
            "reproduce/minatar.md",
        ),
        (
            "NaP ends level with a fresh network, +1.0 points [−2.0, 4.0], and LayerNorm alone loses 21",
            "../README.md",
            "+1.0 points [−2.0, 4.0], and LayerNorm has lost 21 points [18, 24]",
            "reproduce/fig1.md",
        ),
        ("at 10⁻³ .409 against .450", "schedules.md", "| NaP | .409 | .450 |", DECLINE),
        (
            "at 5·10⁻⁴ .361 against .366",
            "schedules.md",
            "| NaP, `--learning-rate 5e-4` | .361 | .366 |",
            DECLINE,
        ),
        (
            "at 3·10⁻⁴ .326 against .291",
            "schedules.md",
            "| NaP, `--learning-rate 3e-4` | .326 | .291 |",
            DECLINE,
        ),
        (
            "the gap was 14.8 %",
            "schedules.md",
            "14.8 % [14.2, 15.3] of the curve's height",
            "reproduce/fig2.md",
        ),
        ("agreed within 0.9 % of their height", "schedules.md", ".9 % of the height", "reproduce/fig2.md"),
        (
            ".7 % of the dead came back without norms, and 100 %",
            "diagnostics.md",
            ".7 % [.5, .9]",
            "reproduce/revival.md",
        ),
        ("89 % of the units ended linearized", "diagnostics.md", COLLAPSE, "reproduce/fig4.md"),
        ("at 2 of 512 without NaP, at 293 with it", "diagnostics.md", COLLAPSE, "reproduce/fig4.md"),
        (
            "lost 18 to 36 points from the first task",
            "diagnostics.md",
            "18 to 36 points from the first task to the second",
            "reproduce/fig1.md",
        ),
        (
            ".56 against .61 when free and .63 joint",
            "faq.md",
            "left free .61, projected jointly .63",
            "reproduce/fig1.md",
        ),
        (
            ".41 against .38 when free and .44 joint",
            "faq.md",
            "| NaP, scale and offset free (`--affine free`) | .376 |",
            DECLINE,
        ),
    ],
)
def test_quoted_results_were_measured(quoted: str, page: str, measured: str, where: str) -> None:
    assert quoted in (DOCS / page).read_text("utf-8")
    assert measured in (DOCS / where).read_text("utf-8")


@pytest.mark.slow
def test_digits_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the other examples, which tests/integrations/test_integrations_examples.py runs."""
    script = tmp_path / "examples" / "digits.py"  # it writes beside the folder that it lies in
    script.parent.mkdir()
    shutil.copy(ROOT / "examples/digits.py", script)
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setattr(sys, "argv", [str(script), "--tasks", "1"])
    forked = server()  # its processes have torch imported already
    monkeypatch.setattr("multiprocessing.get_context", lambda method: forked)
    importlib.import_module("digits").main()
    del sys.modules["digits"]
    assert re.search(r"^NaP .* (\S+) → \1 ", capsys.readouterr().out, re.MULTILINE), "the norm stays"
    assert (tmp_path / "demo/digits.png").is_file()


def test_every_example_is_in_the_documentation() -> None:
    page = (DOCS / "examples.md").read_text("utf-8")
    assert [
        file.name for file in (ROOT / "examples").glob("*.py") if f"examples/{file.name})" not in page
    ] == []
